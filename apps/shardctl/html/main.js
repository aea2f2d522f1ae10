// Reads the document in the page and shows it.

const VIEWS = { "shardctl.inspect/1": showInspect, "shardctl.verify/1": showVerify, "shardctl.diff/1": showDiff };

const started = performance.now();
const shardDocument = JSON.parse(document.getElementById("document").textContent);
VIEWS[shardDocument.schema](shardDocument, document.getElementById("main"));
document.getElementById("bottom").append(
  make("p", {}, `${shardDocument.schema} · the whole document is in this file, in the element with the id “document”. Keys: `,
    ...["/", "↑", "↓", "←", "→", "Home", "End"].map((key) => make("kbd", {}, key)), " · / searches"));
// For tests: milliseconds from the start of the script to a usable page.
document.documentElement.dataset.ready = Math.round(performance.now() - started);
