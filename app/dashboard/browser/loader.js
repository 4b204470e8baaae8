// Inlined into every panel: fetches the panel's own module once, by a versioned address the browser may keep for good,
// and hands it the data of each rerun. `views` holds what a mounted panel keeps between reruns (zoom, open menus).
globalThis.logprobeViews ??= new WeakMap();
const views = globalThis.logprobeViews;

export default function (component) {
  const { parentElement: root, data, setTriggerValue } = component;
  const view = views.get(root) ?? {};
  views.set(root, view);
  view.data = data;
  view.ready ??= Promise.all([load(data, data.panel), load(data, "address")]);
  view.ready.then(([module, address]) => {
    if (view.closed) return;
    address.told(data.address);
    view.send = (name, value) => {
      address.sent(name, value);
      setTriggerValue(name, { value, address: location.search, told: address.knows() }); // Streamlit itself reads it only when the page loads
    };
    module.update(root, view);
  });
  return () => {
    view.closed = true;
    views.delete(root);
    view.ready.then(([module]) => module.close?.(root, view));
  };
}

const load = (data, name) => import(new URL(`${data.assets}/${name}.js`, document.baseURI).href);
