// Drawings of sharded tensors: chunks as boxes, coloured by rank, in one or two dimensions.

const MAX_BOXES = 4096;
const MAX_STRIPES = 32;
const EDGE = { left: 46, top: 26, right: 2, bottom: 2 };

const sliceText = (chunk) => `[${chunk.offsets.map((begin, d) => `${begin}:${begin + chunk.sizes[d]}`).join(", ")}]`;
const isEmptyChunk = (chunk) => chunk.sizes.includes(0);

/// Dimensions in which at least one chunk is shorter than the tensor.
function shardedDims(tensor) {
  return tensor.shape.map((size, d) => d).filter((d) => tensor.chunks.some((chunk) => chunk.sizes[d] !== tensor.shape[d]));
}

/// A summary of a tensor's chunks: sharded dimensions, distinct non-empty boxes, most replicas of a box, ranks.
function shardingOf(tensor) {
  if (tensor.shardingFacts) return tensor.shardingFacts;
  const boxes = new Map();
  for (const chunk of tensor.chunks) {
    if (isEmptyChunk(chunk)) continue;
    const key = `${chunk.offsets}/${chunk.sizes}`;
    boxes.set(key, (boxes.get(key) ?? 0) + 1);
  }
  const ranks = [...new Set(tensor.chunks.map((chunk) => chunk.rank))].filter((rank) => rank !== null);
  let replicas = 0;
  for (const count of boxes.values()) replicas = Math.max(replicas, count);
  tensor.shardingFacts = { dims: shardedDims(tensor), boxes: boxes.size, replicas, ranks };
  return tensor.shardingFacts;
}

/// One line such as "8 boxes, dim 0", "whole ×4" or "R, S(0) · 4 boxes ×2".
function shardingText(tensor) {
  const { dims, boxes, replicas } = shardingOf(tensor);
  const again = replicas > 1 ? ` ×${replicas}` : "";
  const pieces = boxes <= 1 ? `whole${again}` : `${number(boxes)} boxes${again}`;
  if (tensor.placements) return `${tensor.placements.join(", ")} · ${pieces}`;
  return boxes <= 1 ? pieces : `${pieces}, dim ${dims.join(", ")}`;
}

/// The dimensions drawn downwards and to the right, or null. Sharded dimensions come first, then the last ones.
function drawnDims(tensor) {
  const sharded = shardingOf(tensor).dims;
  const rest = tensor.shape.map((size, d) => d).filter((d) => !sharded.includes(d)).reverse();
  const [a, b] = [...sharded, ...rest].slice(0, 2).sort((x, y) => x - y);
  return a === undefined ? [null, null] : b === undefined ? [null, a] : [a, b];
}

/// Groups chunks that appear as the same box.
function seenBoxes(tensor, down, right) {
  const groups = new Map();
  const extent = (chunk, d) => (d === null ? [0, 1] : [chunk.offsets[d], chunk.offsets[d] + chunk.sizes[d]]);
  for (const chunk of tensor.chunks) {
    if (isEmptyChunk(chunk)) continue;
    const [y0, y1] = extent(chunk, down);
    const [x0, x1] = extent(chunk, right);
    const key = `${y0},${y1},${x0},${x1}`;
    const group = groups.get(key);
    if (group) group.chunks.push(chunk);
    else if (groups.size < MAX_BOXES) groups.set(key, { x0, x1, y0, y1, chunks: [chunk] });
  }
  return [...groups.values()];
}

function drawnSize(tensor, down, right) {
  const width = 420;
  if (down === null) return [width, 64];
  const ratio = tensor.shape[down] / Math.max(1, tensor.shape[right]);
  const height = Math.min(300, Math.max(130, width * ratio));
  return [Math.min(width, Math.max(200, height / ratio)), height];
}

/// Draws a box as stripes, one per chunk, side by side along the longer side.
function drawBox(box, place, tensor) {
  const { x, y, width, height } = place(box);
  const chunks = box.chunks.slice(0, MAX_STRIPES);
  const isWide = width >= height;
  const seams = chunks.slice(1).map((chunk, i) => {
    const share = (i + 1) / chunks.length;
    const [left, top] = isWide ? [x + share * width, y] : [x, y + share * height];
    return draw("line", { class: "seam", x1: left, y1: top, x2: isWide ? left : x + width, y2: isWide ? y + height : top });
  });
  const stripes = chunks.map((chunk, i) => {
    const w = isWide ? width / chunks.length : width;
    const h = isWide ? height : height / chunks.length;
    const left = isWide ? x + i * w : x;
    const top = isWide ? y : y + i * h;
    const title = `${rankText(chunk.rank)} ${sliceText(chunk)} in ${shown(chunk.file)}`;
    const group = draw("g", { class: "stripe", "data-rank": `${chunk.rank}` }, draw("title", {}, title),
      draw("rect", { x: left, y: top, width: w, height: h, fill: rankColour(chunk.rank) }));
    const label = chunk.rank === null ? "" : `${chunk.rank}`;
    const fits = w > 9 + 7 * label.length && h > 16;
    if (label && fits) group.append(draw("text", { x: left + w / 2, y: top + h / 2 }, label));
    return group;
  });
  const isBig = width > 3 && height > 3;
  return draw("g", {}, ...stripes, ...(isBig ? seams : []), isBig ? draw("rect", { class: "outline", x, y, width, height }) : null);
}

/// The drawing, and a sentence about anything that it does not show.
function chunkDrawing(tensor) {
  const [down, right] = drawnDims(tensor);
  const [width, height] = drawnSize(tensor, down, right);
  const extents = [right === null ? 1 : Math.max(1, tensor.shape[right]), down === null ? 1 : Math.max(1, tensor.shape[down])];
  const place = (box) => ({
    x: EDGE.left + (box.x0 / extents[0]) * width, width: Math.max(0.75, ((box.x1 - box.x0) / extents[0]) * width),
    y: EDGE.top + (box.y0 / extents[1]) * height, height: Math.max(0.75, ((box.y1 - box.y0) / extents[1]) * height),
  });
  const boxes = seenBoxes(tensor, down, right);
  const whole = [width + EDGE.left + EDGE.right, height + EDGE.top + EDGE.bottom];
  const picture = draw("svg", { viewBox: `0 0 ${whole[0]} ${whole[1]}`, role: "img", "aria-label": drawingLabel(tensor), class: "boxes" },
    draw("rect", { class: "hole", x: EDGE.left, y: EDGE.top, width, height }),
    right === null ? null : draw("text", { class: "axis", x: EDGE.left + width / 2, y: 14 }, `dim ${right} · ${number(tensor.shape[right])} →`),
    down === null ? null : draw("text", { class: "axis", x: -(EDGE.top + height / 2), y: 18, transform: "rotate(-90)" }, `← dim ${down} · ${number(tensor.shape[down])}`),
    ...boxes.map((box) => drawBox(box, place, tensor)));
  picture.style.maxWidth = `${whole[0]}px`;
  return make("figure", {}, picture, rankLegend(tensor, picture), make("figcaption", {}, drawingNotes(tensor, down, right, boxes).join(" ")));
}

function drawingLabel(tensor) {
  const { ranks } = shardingOf(tensor);
  const over = ranks.length > 0 ? ` on ${ranks.length === 1 ? "rank" : "ranks"} ${runsText(ranks)}` : "";
  return `Drawing of the chunks: shape ${shapeText(tensor.shape)}, ${shardingText(tensor)}${over}. The table below lists them.`;
}

function drawingNotes(tensor, down, right, boxes) {
  const { dims } = shardingOf(tensor);
  const hidden = dims.filter((d) => d !== down && d !== right);
  const notes = [];
  const stripes = boxes.some((box) => box.chunks.length > 1);
  if (hidden.length > 0) notes.push(`Also sharded along dim ${hidden.join(", ")}: boxes that would cover each other are drawn side by side, separated by dashed lines.`);
  else if (stripes) notes.push("Dashed lines separate replicas (the same box on several ranks).");
  if (boxes.some((box) => box.chunks.length > MAX_STRIPES)) notes.push(`Only the first ${MAX_STRIPES} chunks of a box are drawn.`);
  if (boxes.length === MAX_BOXES) notes.push(`Only the first ${number(MAX_BOXES)} boxes are drawn.`);
  const empty = tensor.chunks.filter(isEmptyChunk).length;
  if (empty > 0) notes.push(`${plural(empty, "chunk")} without elements ${empty === 1 ? "is" : "are"} not drawn.`);
  return notes;
}

/// A legend of ranks and colours. Pointing at a rank dims the others.
function rankLegend(tensor, picture) {
  const ranks = [...new Set(tensor.chunks.map((chunk) => chunk.rank))].sort((a, b) => (a ?? -1) - (b ?? -1));
  if (ranks.length < 2) return null;
  const dim = (rank) => {
    for (const stripe of picture.querySelectorAll(".stripe")) {
      stripe.classList.toggle("dimmed", rank !== undefined && stripe.dataset.rank !== `${rank}`);
    }
  };
  const items = ranks.slice(0, 32).map((rank) => make("li", { onmouseenter: () => dim(rank), onmouseleave: () => dim(undefined) },
    swatch(rankColour(rank)), rankText(rank)));
  if (ranks.length > 32) items.push(make("li", {}, `… ${plural(ranks.length - 32, "more rank")}`));
  return make("ul", { class: "legend", "aria-label": "Colours of ranks" }, ...items);
}

function swatch(colour) {
  const element = make("span", { class: "swatch", "aria-hidden": "true" });
  element.style.background = colour;
  return element;
}
