// When the queue is empty: the last label can still be taken back.
import { send } from "./api.js";
import { toast } from "./toast.js";

const LAST = "ratchet-last-label";
const button = document.querySelector("[data-undo-last]");
const last = sessionStorage.getItem(LAST);
button.hidden = !last;
button.addEventListener("click", async () => {
  try {
    await send(`/api/v1/reviews/${last}/undo/`);
    sessionStorage.removeItem(LAST);
    location.assign("/review/");
  } catch (error) {
    toast(error.message);
  }
});
const waiting = sessionStorage.getItem("ratchet-toast");
if (waiting) { sessionStorage.removeItem("ratchet-toast"); toast(waiting); }
