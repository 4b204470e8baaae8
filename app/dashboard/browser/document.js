// A finished document of ours (app/view/html.py), with a style sheet of its own that touches nothing else.
export default function show({ parentElement, data }) {
  const host = parentElement.querySelector("article") ?? parentElement.appendChild(document.createElement("article"));
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  host.setAttribute("aria-label", data.label);
  host.style.colorScheme = data.theme;
  root.innerHTML = `<style>${data.style}</style><div class="${data.theme}">${data.markup}</div>`;
}
