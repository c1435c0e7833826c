// The button that switches between light and dark.
import { isDark } from "./theme.js";

const root = document.documentElement;

for (const button of document.querySelectorAll("[data-toggle-theme]")) {
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("ratchet-theme", root.dataset.theme);
    dispatchEvent(new Event("ratchet:theme"));
  });
}
