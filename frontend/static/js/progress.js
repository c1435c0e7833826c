// Follows an evaluation, a measurement or the checks of a suite under way: counts and an estimate, and a fresh page when its state has changed.
import { load } from "./api.js";
import { say } from "./dom.js";

const box = document.querySelector("[data-progress]");
const EVERY = 3000;

const left = (seconds) => seconds === null ? "" : seconds < 90 ? `; about ${Math.ceil(seconds)} s left` : `; about ${Math.ceil(seconds / 60)} min left`;

async function follow() {
  if (!document.hidden) {
    try {
      const answer = await load(box.dataset.progress);
      if ((answer.mark ?? answer.state) !== box.dataset.mark) return location.reload();
      const news = answer.progress ?? answer;
      const bar = box.querySelector("progress");
      if (bar) { bar.max = news.total || 1; bar.value = news.done; }
      say(box.querySelector("[data-progress-words]"), `${news.done} of ${news.total} ${box.dataset.noun ?? "groups"}${left(news.left_seconds)}`);
    } catch (error) {
      say(box.querySelector("[data-progress-words]"), error.message);
    }
  }
  return setTimeout(follow, EVERY);
}

if (box) setTimeout(follow, EVERY);
