// shardctl.diff/1: the differences between two checkpoints.

const real = (value) => (typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value);
const realText = (value) => (value === null ? "–" : typeof value === "string" ? value : value === 0 ? "0" : Number(value.toPrecision(4)).toString());
const valueText = (value) => (value === undefined ? "absent" : value === null ? "None" : shown(String(value)));

/// All differences as rows: kind, name, a, b, and the entry of the document.
function differencesOf(doc) {
  const only = (side) => (name) => ({ kind: `only in ${side}`, name, a: side === "A" ? "present" : "absent", b: side === "B" ? "present" : "absent" });
  return [
    ...doc.values.map((entry) => ({ kind: "values", name: entry.name, entry })),
    ...doc.shape.map(({ name, a, b }) => ({ kind: "shape", name, a: shapeText(a), b: shapeText(b) })),
    ...doc.dtype.map(({ name, a, b }) => ({ kind: "dtype", name, a, b })),
    ...doc.only_in_a.map(only("A")),
    ...doc.only_in_b.map(only("B")),
    ...doc.objects.map((each) => ({ kind: "object", name: each.name, a: valueText(each.a), b: valueText(each.b) })),
  ];
}

function showDiff(doc, main) {
  pageHead("diff", `${doc.a} and ${doc.b}`, []);
  const { counts } = doc;
  const rows = differencesOf(doc);
  const listed = { values: doc.values, shape: doc.shape, dtype: doc.dtype, only_in_a: doc.only_in_a, only_in_b: doc.only_in_b, objects: doc.objects };
  const left = Object.entries(counts).reduce((sum, [kind, count]) => sum + count - listed[kind].length, 0);
  main.replaceChildren(
    make("section", { class: `banner ${doc.equal ? "good" : "bad"}`, "aria-label": "Verdict" },
      make("strong", {}, doc.equal ? "✓ Equal" : "≠ They differ"), make("span", {}, `${plural(doc.tensor_count, "tensor")} compared. A is `, breakable(doc.a), ", B is ", breakable(doc.b), ".")),
    figures([["Values differ", number(counts.values), "tensors"], ["Only in A", number(counts.only_in_a), "tensors"], ["Only in B", number(counts.only_in_b), "tensors"],
      ["Different dtype", number(counts.dtype), "tensors"], ["Different shape", number(counts.shape), "tensors"], ["Objects", number(counts.objects), "differ or are absent"]]),
    left > 0 ? make("p", { class: "banner warning" }, `${plural(left, "more difference")}, not listed because of --max-diffs.`) : "",
    diffCards(doc), rows.length > 0 ? differenceView(rows) : "");
}

function diffCards(doc) {
  const magnitudes = doc.values.map((entry) => real(entry.max_abs)).filter((x) => Number.isFinite(x) && x > 0).map((x) => [Math.floor(Math.log10(x)), 1]);
  const charts = [
    histogram("Elements by |a − b|", binsOf(doc.values.flatMap((entry) => entry.abs_histogram), 10), "element", "h2"),
    histogram("Elements by ULPs between a and b", binsOf(doc.values.flatMap((entry) => entry.ulp_histogram), 2), "element", "h2"),
    histogram("Tensors by largest |a − b|", binsOf(magnitudes, 10), "tensor", "h2"),
  ].filter(Boolean);
  return make("div", { class: "cards" }, ...charts.map((chart) => make("section", { class: "card", "aria-label": chart.querySelector("h2").textContent }, chart)));
}

const shareOf = (row) => (row.entry ? row.entry.differing / row.entry.elements : -1);
const sizeOf = (row, key) => {
  const value = row.entry ? real(row.entry[key]) : null;
  return value === null ? -1 : Number.isNaN(value) ? Infinity : value;
};

function differenceView(rows) {
  const numeric = (title, key, width, of, text) => ({ title, key, width, sortable: true, align: "right", cell: text,
    order: (a, b) => (of(a) === of(b) ? 0 : of(a) - of(b)) });
  const columns = [
    textColumn("Name", "name", "minmax(12rem, 1.5fr)", (row) => row.name),
    { title: "Kind", key: "kind", width: "6.5rem", sortable: true, order: (a, b) => byName(a.kind, b.kind), cell: (row) => make("span", { class: "tag" }, row.kind) },
    numeric("Differing", "differing", "minmax(9rem, 1fr)", shareOf, differingCell),
    numeric("Max |a − b|", "max_abs", "7rem", (row) => sizeOf(row, "max_abs"), (row) => (row.entry ? realText(row.entry.max_abs) : "")),
    numeric("Max rel", "max_rel", "7rem", (row) => sizeOf(row, "max_rel"), (row) => (row.entry ? realText(row.entry.max_rel) : "")),
    numeric("Max ULP", "max_ulp", "7rem", (row) => sizeOf(row, "max_ulp"), (row) => (row.entry?.max_ulp == null ? "" : amountText(row.entry.max_ulp))),
  ];
  const view = simpleView("Differences", "Search: words of names, values, shape, dtype, object, only in A", rows, columns,
    (row) => (row.lower ??= `${row.name} ${row.kind} ${row.entry?.dtype ?? ""}`.toLowerCase()), differenceDetails);
  view.grid.sortBy("max_abs");
  view.grid.select(0);
  return make("section", { class: "part", "aria-label": "Differences" }, make("h2", {}, "Differences"), view.element);
}

function differingCell(row) {
  if (!row.entry) return make("span", { class: "muted" }, `${row.a} / ${row.b}`);
  const { differing, elements } = row.entry;
  const bar = make("span", { class: "mini", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${(100 * differing) / Math.max(1, elements)}%`;
  return make("span", { class: "bytes", title: `${number(differing)} of ${number(elements)}` }, shareText(differing, elements), bar);
}

function differenceDetails(row) {
  const head = make("h2", {}, breakable(row.name || "(no name)"));
  if (!row.entry) return make("div", {}, head, facts([["Kind", row.kind], ["A", make("span", {}, row.a)], ["B", make("span", {}, row.b)]]));
  const { entry } = row;
  const counted = entry.abs_histogram.reduce((sum, [, count]) => sum + count, 0);
  const uncounted = entry.max_abs === null ? 0 : entry.differing - counted;
  return make("div", {}, head, facts([
    ["Dtype", entry.dtype], ["Shape", shapeText(entry.shape)],
    ["Differing", `${number(entry.differing)} of ${number(entry.elements)} elements (${shareText(entry.differing, entry.elements)})`],
    ["Max |a − b|", realText(entry.max_abs)], ["Max relative", realText(entry.max_rel)],
    ["Max ULP", entry.max_ulp === null ? "–" : number(entry.max_ulp)], ["First at", `[${entry.first_index.join(", ")}]`],
    uncounted > 0 ? ["NaN or infinite", `${plural(uncounted, "distance")}, in no bin`] : null,
  ]), histogram("Elements by |a − b|", binsOf(entry.abs_histogram, 10), "element"), histogram("Elements by ULPs", binsOf(entry.ulp_histogram, 2), "element"));
}
