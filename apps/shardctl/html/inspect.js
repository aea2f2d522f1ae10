// shardctl.inspect/1: the content of a checkpoint and its layout.

function showInspect(doc, main) {
  for (const tensor of doc.tensors) tensor.ownBytes = tensor.alias_of === null ? tensor.bytes : 0;
  const world = doc.world_size === null ? null : plural(doc.world_size, "rank");
  pageHead("inspect", doc.source, [doc.format, doc.format_version, world]);
  const view = tensorView(doc);
  const lists = [
    [`Tensors (${number(doc.tensor_count)})`, view.element],
    doc.object_count > 0 ? [`Objects (${number(doc.object_count)})`, objectView(doc)] : null,
    [`Files (${number(doc.file_count)})`, fileView(doc)],
    Object.keys(doc.metadata).length > 0 ? ["Metadata", metadataView(doc)] : null,
  ];
  main.replaceChildren(warningsOf(doc), inspectFigures(doc), overview(doc, view), tabs(lists.filter(Boolean)));
}

function warningsOf(doc) {
  if (doc.warnings.length === 0) return "";
  return make("section", { class: "banner warning", "aria-label": "Warnings" },
    make("ul", {}, ...doc.warnings.slice(0, 100).map((text) => make("li", {}, shown(text)))));
}

function inspectFigures(doc) {
  const whole = doc.tensors.filter((tensor) => tensor.alias_of === null);
  const elements = whole.reduce((sum, tensor) => sum + product(tensor.shape), 0);
  const chunks = doc.tensors.reduce((sum, tensor) => sum + tensor.chunks.length, 0);
  const replicated = doc.stored_bytes > doc.logical_bytes ? `${shareText(doc.stored_bytes, doc.logical_bytes)} of the logical bytes` : null;
  return figures([
    ["Tensors", number(doc.tensor_count), `${plural(chunks, "chunk")}`],
    ["Elements", amountText(elements), elements >= 10000 ? number(elements) : null],
    ["Logical bytes", bytesText(doc.logical_bytes), number(doc.logical_bytes)],
    ["Stored bytes", bytesText(doc.stored_bytes), replicated ?? number(doc.stored_bytes)],
    ["Files", number(doc.file_count), bytesText(doc.files.reduce((sum, file) => sum + file.bytes, 0))],
    ["Objects", number(doc.object_count), null],
    ...doc.meshes.slice(0, 2).map((mesh) => ["Mesh", mesh.axes.map((axis) => axis.size).join(" × "),
      mesh.axes.map((axis, i) => shown(axis.name ?? `axis ${i}`)).join(" × ")]),
  ]);
}

/// Charts of bytes by dtype, by module, and by rank or file.
function overview(doc, view) {
  const dtypes = new Map();
  for (const tensor of doc.tensors) {
    const entry = dtypes.get(tensor.dtype) ?? { label: tensor.dtype, value: 0, count: 0 };
    entry.value += tensor.ownBytes;
    ++entry.count;
    dtypes.set(tensor.dtype, entry);
  }
  const byDtype = largest([...dtypes.values()], 8);
  byDtype.forEach((entry, i) => Object.assign(entry, { note: entry.count ? plural(entry.count, "tensor") : null, colour: entry.colour ?? colourOf(i) }));
  const modules = largest(topModules(view.root).map((node) => ({ label: node.path, value: node.bytes, note: plural(node.count, "tensor"),
    onChoose: () => view.choose(node.node) })), 8);
  return make("div", { class: "cards" }, card("Bytes by dtype", shares("Bytes by dtype", byDtype)),
    card("Bytes by module", shares("Bytes by module", modules)), wherePart(doc));
}

/// The modules at the first branch of the tree.
function topModules(root) {
  let at = root;
  let path = "";
  while (at.children.length === 1 && at.children[0].tensor === null) {
    at = at.children[0];
    path += `${at.label}.`;
  }
  return at.children.map((node) => ({ path: path + node.label, bytes: node.bytes, count: node.count, node }));
}

function wherePart(doc) {
  const ranks = new Map();
  for (const tensor of doc.tensors) {
    if (tensor.alias_of !== null) continue;
    const elements = product(tensor.shape);
    for (const chunk of tensor.chunks) {
      const bytes = elements === 0 ? 0 : (tensor.bytes / elements) * product(chunk.sizes);
      ranks.set(chunk.rank, (ranks.get(chunk.rank) ?? 0) + bytes);
    }
  }
  const known = [...ranks.entries()].filter(([rank]) => rank !== null).sort(([a], [b]) => a - b);
  if (known.length === 0) {
    return card("Bytes by file", shares("Bytes by file", largest(doc.files.map((file) => ({ label: file.path, value: file.bytes })), 8)));
  }
  const parts = known.map(([rank, value]) => ({ label: `rank ${rank}`, value: Math.round(value), colour: rankColour(rank) }));
  if (parts.length <= 8) return card("Stored bytes by rank", shares("Stored bytes by rank", parts));
  const values = parts.map((part) => part.value);
  const [least, most] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  return card("Stored bytes by rank", columns(`Stored bytes of ${parts.length} ranks, from ${bytesText(least)} to ${bytesText(most)}`, parts),
    make("p", { class: "muted" }, `${parts.length} ranks, from ${bytesText(least)} to ${bytesText(most)}`));
}

// ---- Tensors.

const byLabel = (a, b) => byNameKey((a.key ??= nameKey(a.label)), (b.key ??= nameKey(b.label)));

const treeOrders = {
  name: byLabel,
  dtype: (a, b) => (dtypeOf(a) < dtypeOf(b) ? -1 : dtypeOf(a) > dtypeOf(b) ? 1 : 0),
  shape: (a, b) => elementsOf(a) - elementsOf(b),
  bytes: (a, b) => a.bytes - b.bytes,
  sharding: (a, b) => chunksOf(a) - chunksOf(b),
};
const dtypeOf = (node) => node.tensor?.dtype ?? "";
const elementsOf = (node) => (node.tensor ? product(node.tensor.shape) : node.count);
const chunksOf = (node) => (node.tensor ? node.tensor.chunks.length : 0);

function tensorColumns(root, state) {
  return [
    { title: "Name", key: "name", width: "minmax(15rem, 2.4fr)", sortable: true, cell: (node) => nameCell(node, state) },
    { title: "Dtype", key: "dtype", width: "6.5rem", sortable: true, cell: (node) => node.tensor?.dtype ?? "" },
    { title: "Shape", key: "shape", width: "minmax(7.5rem, 1fr)", sortable: true, align: "right",
      cell: (node) => (node.tensor ? shapeText(node.tensor.shape) : make("span", { class: "muted" }, plural(node.count, "tensor"))) },
    { title: "Bytes", key: "bytes", width: "8.5rem", sortable: true, align: "right", cell: (node) => bytesCell(node, root.bytes) },
    { title: "Sharding", key: "sharding", width: "minmax(9rem, 1.3fr)", sortable: true, cell: (node) => (node.tensor ? (node.tensor.shardingText ??= shardingText(node.tensor)) : "") },
  ];
}

function nameCell(node, state) {
  const text = state.isTree ? node.label : node.tensor.name;
  const cell = make("span", { class: "tree" });
  if (state.isTree) {
    cell.style.paddingLeft = `${Math.min(node.level, 24) * 1.1}rem`;
    cell.append(make("span", { class: node.isOpen === null ? "leaf" : "twist", "aria-hidden": "true" }, node.isOpen === null ? "" : node.isOpen ? "▾" : "▸"));
  }
  const label = shown(text).slice(0, 300) || "(no name)";
  cell.append(make("bdi", { class: node.isOpen === null ? "name" : "name folder", title: label }, label));
  const { rank, alias_of: alias } = node.tensor ?? {};
  if (rank !== undefined) cell.append(make("span", { class: "tag" }, `rank ${rank}`));
  if (alias) cell.append(make("span", { class: "tag" }, "alias"));
  return cell;
}

function bytesCell(node, whole) {
  const bar = make("span", { class: "mini", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${whole === 0 ? 0 : Math.min(100, (100 * node.bytes) / whole)}%`;
  return make("span", { class: "bytes", title: `${number(node.tensor?.bytes ?? node.bytes)} bytes` }, bytesText(node.tensor?.bytes ?? node.bytes), bar);
}

function tensorView(doc) {
  const root = makeTree(doc.tensors);
  const leaves = leavesOf(root);
  const state = { isTree: true, matching: leaves, text: "" };
  const details = make("aside", { class: "details", role: "region", "aria-label": "Details of the selected row" },
    make("p", { class: "muted" }, "Select a tensor to see where it is stored."));
  const order = () => {
    const { key, descending } = grid.sort;
    const base = treeOrders[key];
    const compare = (a, b) => base(a, b) || byLabel(a, b);
    return [descending ? (a, b) => compare(b, a) : compare, `${key} ${descending}`];
  };
  const update = (keepScroll) => {
    const [compare, sorting] = order();
    grid.setRows(state.isTree ? openRows(root, compare, sorting) : sortedLeaves(state, compare, sorting), keepScroll);
  };
  const grid = new Grid(tensorColumns(root, state), {
    label: "Tensors", isTree: true, onSort: () => update(false), onSelect: (node) => details.replaceChildren(nodeDetails(node, doc)),
    onToggle: (node) => {
      node.isOpen = !node.isOpen;
      update(true);
    },
  });
  const search = (text) => {
    const matches = predicateOf(text);
    state.matching = text.trim() === "" ? leaves : leaves.filter((leaf) => matches(leaf.tensor));
    state.flat = undefined;
    countMatching(root, state.matching);
    if (text.trim() !== "") openUpTo(root, 2000);
    update(false);
    parts.say(text.trim() === "" ? plural(leaves.length, "tensor") : `${number(state.matching.length)} of ${plural(leaves.length, "tensor")}`);
  };
  const mode = make("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => {
    state.isTree = !state.isTree;
    mode.setAttribute("aria-pressed", `${!state.isTree}`);
    update(false);
  } }, "Flat list");
  const openAll = make("button", { type: "button", class: "quiet", onclick: () => (setOpen(root, true), update(true)) }, "Expand all");
  const closeAll = make("button", { type: "button", class: "quiet", onclick: () => (setOpen(root, false), update(false)) }, "Collapse all");
  const parts = explorer({ grid, details, label: "Search tensors by words of their names, dtype:, rank:, file:, shape: and sharding:",
    placeholder: "Search: words, dtype:bfloat16, rank:3, file:x, shape:4096", onSearch: search, buttons: [mode, openAll, closeAll] });
  openUpTo(root, 40);
  update(false);
  parts.say(plural(leaves.length, "tensor"));
  if (leaves.length > 0) grid.select(firstSharded(grid.rows));
  const choose = (node) => {
    for (let at = node; at; at = at.parent) at.isOpen = at.tensor ? null : true;
    state.isTree = true;
    update(true);
    grid.select(grid.rows.indexOf(node));
    grid.element.scrollIntoView({ block: "nearest" });
  };
  return { root, element: parts.element, choose };
}

/// The first row whose tensor has several boxes, or else the first row.
function firstSharded(rows) {
  return Math.max(0, rows.slice(0, 200).findIndex((node) => node.tensor && shardingOf(node.tensor).boxes > 1));
}

function sortedLeaves(state, compare, sorting) {
  if (state.flat === undefined || state.sorting !== sorting) {
    const isByName = sorting.startsWith("name");
    state.flat = isByName ? [...state.matching] : [...state.matching].sort(compare);
    if (isByName && sorting.endsWith("true")) state.flat.reverse();
    state.sorting = sorting;
    state.flat.forEach((leaf, i) => Object.assign(leaf, { level: 0, position: i + 1, siblings: state.flat.length }));
  }
  return state.flat;
}

// ---- Details.

function fullName(node) {
  const parts = [];
  for (let at = node; at.parent; at = at.parent) parts.push(at.label);
  return parts.reverse().join(".");
}

function nodeDetails(node, doc) {
  return node.tensor ? tensorDetails(node.tensor, doc) : folderDetails(node);
}

function folderDetails(node) {
  const dtypes = new Map();
  for (const leaf of leavesOf(node)) dtypes.set(leaf.tensor.dtype, (dtypes.get(leaf.tensor.dtype) ?? 0) + leaf.bytes);
  const byDtype = [...dtypes].map(([label, value], i) => ({ label, value, colour: colourOf(i) }));
  const children = node.children.map((child) => ({ label: child.label, value: child.bytes }));
  return make("div", {}, make("h2", {}, breakable(fullName(node))),
    facts([["Tensors", number(node.count)], ["Bytes", `${bytesText(node.bytes)} (${number(node.bytes)})`]]),
    make("h3", {}, "By dtype"), shares("Bytes by dtype", largest(byDtype, 8)),
    make("h3", {}, "By part"), shares("Bytes by part", largest(children, 12)));
}

function tensorDetails(tensor, doc) {
  const { ranks, replicas } = shardingOf(tensor);
  const mesh = tensor.mesh === undefined ? null : doc.meshes[tensor.mesh];
  const axes = mesh?.axes.map((axis, i) => `${shown(axis.name ?? `axis ${i}`)}=${axis.size}`).join(", ");
  return make("div", {}, make("h2", {}, breakable(tensor.name || "(no name)")), facts([
    ["Dtype", tensor.dtype],
    ["Shape", shapeText(tensor.shape)],
    ["Elements", number(product(tensor.shape))],
    ["Bytes", `${bytesText(tensor.bytes)} (${number(tensor.bytes)})`],
    tensor.placements ? ["Placements", `${tensor.placements.join(", ")}${axes ? ` over ${axes}` : ""}`] : null,
    ranks.length > 0 ? ["Ranks", runsText(ranks)] : null,
    replicas > 1 ? ["Replicas", `up to ${replicas} of a box`] : null,
    tensor.rank !== undefined ? ["Value of", `rank ${tensor.rank} only; ranks have different values`] : null,
    tensor.alias_of !== null ? ["Alias of", breakable(tensor.alias_of)] : null,
    tensor.path ? ["Path", breakable(JSON.stringify(tensor.path))] : null,
  ]), make("h3", {}, "Sharding"), chunkDrawing(tensor), make("h3", {}, plural(tensor.chunks.length, "chunk")), chunkTable(tensor));
}

function chunkTable(tensor) {
  const bytes = (chunk) => (chunk.byte_offset === null ? "not plain" : `${number(chunk.byte_offset)} + ${number(chunk.byte_length)}`);
  const grid = new Grid([
    { title: "Rank", key: "rank", width: "4rem", cell: (chunk) => make("span", {}, swatch(rankColour(chunk.rank)), chunk.rank === null ? "–" : `${chunk.rank}`) },
    { title: "Box", key: "box", width: "minmax(8rem, 1fr)", cell: (chunk) => make("span", { title: sliceText(chunk) }, sliceText(chunk)) },
    { title: "File", key: "file", width: "minmax(6rem, 1fr)", cell: (chunk) => make("bdi", { title: shown(chunk.file) }, shown(chunk.file)) },
    { title: "Offset + bytes", key: "bytes", width: "minmax(7rem, 11rem)", align: "right", cell: bytes },
  ], { label: "Chunks" });
  grid.element.classList.add("small");
  grid.element.style.setProperty("--rows", Math.min(10, tensor.chunks.length));
  grid.setRows(tensor.chunks);
  return grid.element;
}

// ---- The other lists.

function simpleView(label, placeholder, rows, columns, textOf, describe) {
  const details = make("aside", { class: "details", role: "region", "aria-label": "Details of the selected row" });
  const sorted = () => {
    const column = columns.find((each) => each.key === grid.sort.key);
    const sign = grid.sort.descending ? -1 : 1;
    if (column.text === undefined) return [...matching].sort((a, b) => sign * column.order(a, b));
    const keyed = matching.map((row) => [nameKey(column.text(row)), row]);
    return keyed.sort(([a], [b]) => sign * byNameKey(a, b)).map(([, row]) => row);
  };
  let matching = rows;
  const grid = new Grid(columns, { label, onSort: () => grid.setRows(sorted()), onSelect: (row) => details.replaceChildren(describe(row)) });
  const parts = explorer({ grid, details, label: `Search ${label.toLowerCase()}`, placeholder, onSearch: (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    matching = rows.filter((row) => words.every((word) => textOf(row).includes(word)));
    grid.setRows(sorted());
    parts.say(`${number(matching.length)} of ${number(rows.length)}`);
  } });
  grid.setRows(sorted());
  parts.say(number(rows.length));
  details.append(make("p", { class: "muted" }, "Select a row for details."));
  return { ...parts, grid };
}

/// A column of texts, sorted alphabetically.
function textColumn(title, key, width, text) {
  return { title, key, width, text, sortable: true,
    cell: (row) => make("bdi", { title: shown(text(row)).slice(0, 1000) }, shown(text(row)).slice(0, 300)) };
}

function objectView(doc) {
  const value = (object) => (object.value === null ? object.summary ?? "None" : String(object.value));
  const columns = [
    textColumn("Name", "name", "minmax(12rem, 1fr)", (object) => object.name),
    textColumn("Type", "type", "10rem", (object) => object.type),
    textColumn("Value", "value", "minmax(10rem, 1fr)", value),
  ];
  const describe = (object) => make("div", {}, make("h2", {}, breakable(object.name)), facts([
    ["Type", shown(object.type)], ["Value", make("pre", {}, shown(value(object)).slice(0, 20000))],
    object.rank === undefined ? null : ["Value of", `rank ${object.rank} only`]]));
  return simpleView("Objects", "Search names, types and values", doc.objects, columns,
    (object) => (object.lower ??= `${object.name} ${object.type} ${value(object)}`.toLowerCase()), describe).element;
}

function fileView(doc) {
  const columns = [
    textColumn("Path", "path", "minmax(14rem, 1fr)", (file) => file.path),
    { title: "Bytes", key: "bytes", width: "10rem", sortable: true, align: "right", order: (a, b) => a.bytes - b.bytes, cell: (file) => bytesText(file.bytes) },
  ];
  return simpleView("Files", "Search paths", doc.files, columns, (file) => file.path.toLowerCase(), (file) => make("div", {},
    make("h2", {}, breakable(file.path)), facts([["Bytes", `${bytesText(file.bytes)} (${number(file.bytes)})`],
      ["Chunks", number(doc.tensors.reduce((sum, tensor) => sum + tensor.chunks.filter((chunk) => chunk.file === file.path).length, 0))]]))).element;
}

function metadataView(doc) {
  const rows = Object.entries(doc.metadata).map(([name, value]) => ({ name, value }));
  const columns = [
    textColumn("Name", "name", "minmax(10rem, 18rem)", (row) => row.name),
    textColumn("Value", "value", "minmax(14rem, 1fr)", (row) => row.value),
  ];
  return simpleView("Metadata", "Search names and values", rows, columns, (row) => `${row.name} ${row.value}`.toLowerCase(),
    (row) => make("div", {}, make("h2", {}, breakable(row.name)), make("pre", {}, shown(row.value).slice(0, 100000)))).element;
}
