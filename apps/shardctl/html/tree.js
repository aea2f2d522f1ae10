// Tensors as a tree of the dotted parts of their names. Uses plain objects and loops instead of recursion, because
// names come from files and may have any depth.

/// Builds the tree and returns its root. A node has: parts of its name (label), parent, children (folders and leaves),
/// tensor (leaves only), and the bytes, count and matching count of the tensors below. Tensors are sorted by name, so
/// those in a folder are consecutive and only the folders of the previous name are searched.
function makeTree(tensors) {
  const newFolder = (label, parent) => ({ label, parent, children: [], tensor: null, isOpen: false, bytes: 0, count: 0, matching: 0 });
  const open = [{ folder: newFolder("", null), end: 0 }]; // The folders of the previous name, and where their parts end in it.
  let last = "";
  for (const tensor of tensors) {
    const { name } = tensor;
    let same = 0;
    while (same < name.length && name.charCodeAt(same) === last.charCodeAt(same)) ++same;
    while (open[open.length - 1].end > same) open.pop();
    let { folder, end } = open[open.length - 1];
    for (let dot = name.indexOf(".", end); dot >= 0; dot = name.indexOf(".", end)) {
      const next = newFolder(name.slice(end, dot), folder);
      folder.children.push(next);
      folder = next;
      end = dot + 1;
      open.push({ folder, end });
    }
    folder.children.push({ label: name.slice(end), parent: folder, tensor, isOpen: null, bytes: tensor.ownBytes, count: 1, matching: 1 });
    last = name;
  }
  finishFolders(open[0].folder);
  return open[0].folder;
}

/// Adds up bytes and counts, and joins a folder with its only child: one row `mlp.up_proj.weight` instead of three.
function finishFolders(root) {
  const order = [root];
  for (let i = 0; i < order.length; ++i) {
    for (const child of order[i].children) if (child.tensor === null) order.push(child);
  }
  for (const folder of order.reverse()) {
    folder.children = folder.children.map((child) => onlyChild(child, folder));
    for (const child of folder.children) {
      folder.bytes += child.bytes;
      folder.count += child.count;
    }
    folder.matching = folder.count;
  }
}

function onlyChild(child, parent) {
  if (child.tensor !== null || child.children.length !== 1) return child;
  const only = child.children[0];
  if (child.label.length + only.label.length > 60) return child;
  only.label = `${child.label}.${only.label}`;
  only.parent = parent;
  return only;
}

/// Counts the matching tensors in each folder.
function countMatching(root, leaves) {
  const stack = [root];
  while (stack.length > 0) {
    const node = stack.pop();
    node.matching = 0;
    for (const child of node.children ?? []) stack.push(child);
  }
  for (const leaf of leaves) {
    for (let node = leaf; node !== null && node !== undefined; node = node.parent) ++node.matching;
  }
}

function leavesOf(root) {
  const leaves = [];
  const stack = [root];
  while (stack.length > 0) {
    const node = stack.pop();
    if (node.tensor !== null) leaves.push(node);
    for (let i = (node.children?.length ?? 0) - 1; i >= 0; --i) stack.push(node.children[i]);
  }
  return leaves;
}

/// The rows of the open folders, sorted by `compare` in each folder. Folders cache the order named by `sorting`.
function openRows(root, compare, sorting) {
  const rows = [];
  const stack = [[root, -1]];
  while (stack.length > 0) {
    const [node, level] = stack.pop();
    if (level >= 0) {
      node.level = level;
      rows.push(node);
    }
    if (node.tensor !== null || (level >= 0 && !node.isOpen)) continue;
    if (node.sorting !== sorting) {
      node.children.sort(compare);
      node.sorting = sorting;
    }
    const shown = node.children.filter((child) => child.matching > 0);
    for (let i = shown.length - 1; i >= 0; --i) {
      shown[i].position = i + 1;
      shown[i].siblings = shown.length;
      stack.push([shown[i], level + 1]);
    }
  }
  return rows;
}

/// Opens folders level by level from the top, as long as at most `limit` rows are visible.
function openUpTo(root, limit) {
  let seen = root.children.length;
  let folders = [root];
  while (folders.length > 0) {
    const next = folders.flatMap((folder) => folder.children.filter((child) => child.tensor === null && child.matching > 0));
    const more = next.reduce((sum, folder) => sum + folder.children.filter((child) => child.matching > 0).length, 0);
    seen += more;
    if (seen > limit) return;
    for (const folder of next) folder.isOpen = true;
    folders = next;
  }
}

function setOpen(root, isOpen) {
  const stack = root.children.slice();
  while (stack.length > 0) {
    const node = stack.pop();
    if (node.tensor !== null) continue;
    node.isOpen = isOpen;
    for (const child of node.children) stack.push(child);
  }
}

/// A predicate of tensors for a text such as "dtype:bfloat16 rank:3 q_proj": all words must match.
function predicateOf(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const [, key, value] = /^(dtype|rank|file|shape|sharding):(.+)$/.exec(word) ?? [];
    if (key === "dtype") return (tensor) => tensor.dtype.includes(value);
    if (key === "rank") return (tensor) => tensor.chunks.some((chunk) => `${chunk.rank}` === value);
    if (key === "file") return (tensor) => tensor.chunks.some((chunk) => chunk.file.toLowerCase().includes(value));
    if (key === "shape") return (tensor) => tensor.shape.join("x") === value || tensor.shape.some((size) => `${size}` === value);
    if (key === "sharding") return (tensor) => (tensor.shardingText ??= shardingText(tensor)).toLowerCase().includes(value);
    return (tensor) => (tensor.lower ??= tensor.name.toLowerCase()).includes(word);
  });
  return (tensor) => tests.every((test) => test(tensor));
}
