// A short message in the corner, read out by screen readers.
export function toast(text, undo) {
  const box = document.querySelector(".toasts") ?? document.body.appendChild(Object.assign(document.createElement("div"), { className: "toasts", role: "status" }));
  const item = Object.assign(document.createElement("div"), { className: "toast", textContent: text });
  if (undo) item.append(Object.assign(document.createElement("button"), { textContent: "Undo", type: "button", onclick: () => { undo(); item.remove(); } }));
  box.append(item);
  setTimeout(() => item.remove(), 8000);
}
