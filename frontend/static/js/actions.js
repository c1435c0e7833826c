// Buttons and dialog forms that post to the API: wait, say what came of it, keep what was typed on a refusal.
import { send } from "./api.js";
import { toast } from "./toast.js";

const LATER = "ratchet-toast";

function done(source) {
  sessionStorage.setItem(LATER, source.dataset.done ?? "Done.");
  if (source.dataset.follow) location.assign(source.dataset.follow);
  else location.reload();
}

const heading = (source) => source.dataset.ifMatch ? { "If-Match": `"${source.dataset.ifMatch}"` } : {};

addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  button.disabled = true;
  try {
    await send(button.dataset.post, {}, heading(button));
    done(button);
  } catch (error) {
    toast(error.message);
    button.disabled = false;
  }
});

addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-post-form]");
  if (!form) return;
  event.preventDefault();
  const submit = form.querySelector("[type=submit]");
  const error = form.querySelector(".err");
  submit.disabled = true;
  error.hidden = true;
  try {
    await send(form.dataset.postForm, Object.fromEntries(new FormData(form)), heading(form));
    done(form);
  } catch (problem) {
    error.textContent = problem.message;
    error.hidden = false;
    submit.disabled = false;
  }
});

const waiting = sessionStorage.getItem(LATER);
if (waiting) {
  sessionStorage.removeItem(LATER);
  toast(waiting);
}
