// shardctl.verify/1: the findings in a checkpoint.

function showVerify(doc, main) {
  pageHead("verify", doc.source, []);
  const count = (isCounted) => doc.findings.filter(isCounted).length;
  const errors = count((finding) => finding.severity === "error") + (doc.ok ? 0 : doc.findings_left_out);
  const warnings = count((finding) => finding.severity === "warning" && !finding.not_read);
  const unread = doc.not_read.tensors + doc.not_read.objects + doc.not_read.files;
  const counted = [errors > 0 ? plural(errors, "error") : null, warnings > 0 ? plural(warnings, "warning") : null,
    unread > 0 ? `${plural(unread, "value")} not read` : null].filter(Boolean).join(", ");
  const { checked } = doc;
  main.replaceChildren(
    make("section", { class: `banner ${doc.ok ? "good" : "bad"}`, "aria-label": "Verdict" },
      make("strong", {}, doc.ok ? "✓ Good" : "✗ Damaged"), make("span", {}, counted || "no findings")),
    figures([["Files", number(checked.files)], ["Bytes read", bytesText(checked.bytes), number(checked.bytes)], ["Tensors", number(checked.tensors)],
      ["Chunks", number(checked.chunks)], ["CRC-32s", number(checked.crc32)], ["Blocks of the manifest", number(checked.manifest)]]),
    unprovedNote(doc), findingCards(doc), doc.findings.length > 0 ? findingView(doc) : "");
}

function unprovedNote(doc) {
  if (!doc.ok || doc.checked.crc32 > 0 || doc.checked.manifest > 0) return "";
  return make("p", { class: "muted" }, "No checksums found: changed values cannot be detected.");
}

function findingCards(doc) {
  const kinds = new Map();
  for (const finding of doc.findings) {
    const entry = kinds.get(finding.kind) ?? { label: finding.kind, value: 0, colour: finding.severity === "error" ? "var(--bad)" : "var(--warn)" };
    ++entry.value;
    kinds.set(finding.kind, entry);
  }
  const cards = [];
  if (kinds.size > 0) cards.push(card("Findings by kind", shares("Findings by kind", largest([...kinds.values()], 12), number)));
  if (doc.globals.length > 0) {
    cards.push(card("Python names in pickles", make("ul", { class: "names" }, ...doc.globals.slice(0, 200).map((name) => make("li", {}, breakable(name))))));
  }
  return make("div", { class: "cards" }, ...cards);
}

function findingView(doc) {
  const text = (key) => (finding) => finding[key] ?? "";
  const severity = (finding) => make("span", { class: `tag ${finding.severity}` }, finding.severity);
  const columns = [
    { title: "Severity", key: "severity", width: "6rem", sortable: true, order: (a, b) => byName(a.severity, b.severity), cell: severity },
    textColumn("Kind", "kind", "8.5rem", text("kind")),
    textColumn("File", "file", "minmax(7rem, 1fr)", text("file")),
    textColumn("Tensor", "tensor", "minmax(7rem, 1.2fr)", text("tensor")),
    textColumn("Detail", "detail", "minmax(12rem, 3fr)", text("detail")),
  ];
  const describe = (finding) => make("div", {}, make("h2", {}, severity(finding), " ", finding.kind), facts([
    finding.file === null ? null : ["File", breakable(finding.file)], finding.tensor === null ? null : ["Tensor", breakable(finding.tensor)],
    ["Detail", breakable(finding.detail)]]));
  const lower = (finding) => (finding.lower ??= [finding.severity, finding.kind, finding.file, finding.tensor, finding.detail].join(" ").toLowerCase());
  const view = simpleView("Findings", "Search findings", doc.findings, columns, lower, describe);
  view.grid.select(0);
  const more = doc.findings_left_out > 0 ? make("p", { class: "muted" }, `${plural(doc.findings_left_out, "more finding")} not listed.`) : "";
  return make("section", { class: "part", "aria-label": "Findings" }, make("h2", {}, "Findings"), view.element, more);
}
