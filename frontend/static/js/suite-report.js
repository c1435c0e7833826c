// Follows a report that is being computed, and loads the page anew when it is ready.
import { load } from "./api.js";
import { say } from "./dom.js";

const box = document.querySelector("[data-report-progress]");
const EVERY = 3000;

async function follow() {
  if (!document.hidden) {
    try {
      const report = await load(box.dataset.reportProgress);
      if (report.state !== "computing") return location.reload();
      const bar = box.querySelector("progress");
      bar.max = report.progress.total || 1;
      bar.value = report.progress.done;
      say(box.querySelector("[data-progress-words]"), report.status_message);
    } catch (error) {
      say(box.querySelector("[data-progress-words]"), error.message);
    }
  }
  return setTimeout(follow, EVERY);
}

if (box) setTimeout(follow, EVERY);
