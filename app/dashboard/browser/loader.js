// Inlined into every panel: fetches the panel's own module once, by a versioned address the browser may keep for good,
// and hands it the data of each rerun. `views` holds what a mounted panel keeps between reruns (zoom, open menus).
const views = (globalThis.logprobeViews ??= new WeakMap());

export default function (component) {
  const { parentElement: root, data, setTriggerValue } = component;
  const view = views.get(root) ?? {};
  views.set(root, view);
  view.data = data;
  // Streamlit reads the address once, when the page loads; what panels put there since goes along with what they send.
  view.send = (name, value) => setTriggerValue(name, { value, address: location.search });
  view.ready ??= import(new URL(`${data.assets}/${data.panel}.js`, document.baseURI).href);
  view.ready.then((module) => {
    if (!view.closed) module.update(root, view);
  });
  return () => {
    view.closed = true;
    views.delete(root);
    view.ready.then((module) => module.close?.(root, view));
  };
}
