// Keyboard labelling: digits choose, arrows move between questions, letters act. Off while typing. Drafts survive.
import { send } from "./api.js";
import { say } from "./dom.js";
import { toast } from "./toast.js";

const form = document.querySelector("form[data-review]");
const item = form.dataset.review;
const questions = [...form.querySelectorAll("fieldset.q")];
const began = performance.now();
const DRAFT = `ratchet-draft-${item}`;
const LAST = "ratchet-last-label";
let at = 0;

function go(to) {
  at = Math.max(0, Math.min(questions.length - 1, to));
  questions.forEach((question, i) => question.classList.toggle("on", i === at));
  questions[at].scrollIntoView({ block: "nearest" });
}

function refuse(box, message) {
  const error = box.querySelector(".err");
  error.textContent = message;
  error.hidden = !message;
}

function remember() {
  localStorage.setItem(DRAFT, JSON.stringify(Object.fromEntries(new FormData(form))));
  say(form.querySelector("[data-draft]"), "Draft kept in this browser. Nothing you type is lost.");
}

function restore() {
  const draft = JSON.parse(localStorage.getItem(DRAFT) ?? "{}");
  for (const [name, value] of Object.entries(draft)) {
    if (name === "comment") form.elements.comment.value = value;
    else form.querySelector(`[name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`)?.click();
  }
}

function next(message) {
  localStorage.removeItem(DRAFT);
  sessionStorage.setItem(LAST, item);
  sessionStorage.setItem("ratchet-toast", message);
  location.assign(location.pathname + location.search);
}

async function save() {
  const values = Object.fromEntries(new FormData(form));
  if (!values.verdict) { go(0); return refuse(form, "Answer the first question, or skip the item."); }
  refuse(form, "");
  const seconds = Math.round((performance.now() - began) / 100) / 10;
  try {
    await send(`/api/v1/reviews/${item}/label/`, { verdict: values.verdict, hacking: values.hacking === "yes", comment: values.comment, seconds });
    next("Saved. Press u to undo.");
  } catch (error) {
    refuse(form, error.message);
  }
  return undefined;
}

async function undo() {
  const last = sessionStorage.getItem(LAST);
  if (!last) return toast("There is nothing of yours to undo here.");
  try {
    await send(`/api/v1/reviews/${last}/undo/`);
    sessionStorage.removeItem(LAST);
    sessionStorage.setItem("ratchet-toast", "The last item is open again.");
    location.reload();
  } catch (error) {
    toast(error.message);
  }
  return undefined;
}

const skip = document.querySelector("form[data-skip]");
skip.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await send(`/api/v1/reviews/${item}/skip/`, { reason: skip.elements.reason.value });
    next("Skipped. Press u to undo.");
  } catch (error) {
    refuse(skip, error.message);
  }
});

const ACTIONS = {
  ArrowDown: () => go(at + 1),
  ArrowUp: () => go(at - 1),
  u: undo,
  s: () => document.getElementById("skip").showModal(),
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && event.ctrlKey) { event.preventDefault(); save(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("textarea, input[type=text], select")) return;
  const option = /^[1-9]$/.test(event.key) && questions[at].querySelectorAll("input")[event.key - 1];
  if (option) { option.click(); go(at + 1); }
  else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
});

form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
form.addEventListener("input", remember);
const back = form.querySelector("[data-undo]");
back.hidden = !sessionStorage.getItem(LAST);
back.addEventListener("click", undo);
const waiting = sessionStorage.getItem("ratchet-toast");
if (waiting) { sessionStorage.removeItem("ratchet-toast"); toast(waiting); }
restore();
go(form.querySelector("[name=verdict]:checked") ? 1 : 0);
