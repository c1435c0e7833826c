// The decision form: what each choice needs, errors that name the field, and recomputing the evidence.
import { load, send } from "./api.js";
import { say } from "./dom.js";

const form = document.querySelector("form[data-decide]");

function chosen() {
  return form.querySelector("[name=kind]:checked");
}

function follow() {
  say(form.querySelector("[type=submit]"), chosen()?.dataset.verb ?? "Choose a decision");
  form.querySelector("[type=submit]").disabled = !chosen();
}

function refuse(message, field) {
  const error = form.querySelector(".err");
  error.hidden = !message;
  error.textContent = message;
  form.elements.reason.setAttribute("aria-invalid", field === "reason");
  if (field === "reason") form.elements.reason.focus();
}

async function decide(event) {
  event.preventDefault();
  const reason = form.elements.reason.value.trim();
  const needs = Number(chosen().dataset.needs);
  if (reason.length < needs) return refuse(`Say why, in at least ${needs} characters.`, "reason");
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  const kind = chosen().value;
  const body = { reason, evidence_digest: form.dataset.digest, ...(form.dataset.decide.endsWith("/confirm/") ? { agree: kind === "agree" } : { kind }) };
  try {
    await send(form.dataset.decide, body);
    sessionStorage.setItem("ratchet-toast", "Recorded. Anyone on the project can see it in the audit trail.");
    location.reload();
  } catch (error) {
    refuse(error.message, error.fields[0]?.path ?? "");
    button.disabled = false;
  }
  return undefined;
}

if (form) {
  form.addEventListener("change", follow);
  form.addEventListener("submit", decide);
  follow();
}

document.querySelector("[data-recompute]")?.addEventListener("click", async ({ target }) => {
  const words = document.querySelector("[data-recompute-says]");
  say(words, "recomputing …");
  try {
    const evidence = await load(target.dataset.recompute);
    say(words, evidence.holds ? "the stored episodes are still those of the verdict" : "the stored episodes have changed since the verdict");
  } catch (error) {
    say(words, error.message);
  }
});
