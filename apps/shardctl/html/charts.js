// Charts. Each is a table or has one beside it.

/// The parts of a total as a table with bars: {label, value, note, colour, onChoose}. `text` formats a value.
function shares(caption, parts, text = bytesText) {
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  const most = parts.reduce((max, part) => Math.max(max, part.value), 0);
  const rows = parts.map((part) => {
    const bar = make("span", { class: "bar" });
    bar.style.width = `${most === 0 ? 0 : (100 * part.value) / most}%`;
    bar.style.background = part.colour ?? "var(--accent)";
    const label = part.onChoose ? make("button", { type: "button", class: "link", onclick: part.onChoose }, breakable(part.label || "(no name)")) : breakable(part.label || "(no name)");
    return make("tr", {}, make("th", { scope: "row" }, label, part.note ? make("small", {}, part.note) : null),
      make("td", { class: "track", "aria-hidden": "true" }, bar),
      make("td", { class: "right" }, text(part.value)), make("td", { class: "right muted" }, shareText(part.value, whole)));
  });
  return make("table", { class: "shares" }, make("caption", { class: "unseen" }, caption),
    make("thead", { class: "unseen" }, make("tr", {}, ...["Name", "Bar", "Amount", "Share"].map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows));
}

/// The largest parts, and one entry for all others.
function largest(parts, limit) {
  const sorted = [...parts].sort((a, b) => b.value - a.value);
  if (sorted.length <= limit) return sorted;
  const rest = sorted.slice(limit - 1);
  const value = rest.reduce((sum, part) => sum + part.value, 0);
  return [...sorted.slice(0, limit - 1), { label: `${number(rest.length)} others`, value, colour: "var(--unknown)" }];
}

/// Many values side by side, for example the bytes of each rank: {label, value, colour}.
function columns(label, parts, text = bytesText) {
  const width = 560;
  const height = 120;
  const most = Math.max(1, ...parts.map((part) => part.value));
  const step = width / parts.length;
  const gap = step > 4 ? 1 : 0;
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "columns", preserveAspectRatio: "none" },
    ...parts.map((part, i) => {
      const size = (part.value / most) * height;
      return draw("rect", { x: i * step, y: height - size, width: step - gap, height: size, fill: part.colour }, draw("title", {}, `${part.label}: ${text(part.value)}`));
    }));
}

/// A histogram of {label, long, count}, with a table of the same counts. Null without bins.
function histogram(title, bins, unit, heading = "h3") {
  if (bins.length === 0) return null;
  const width = 440;
  const margin = 12;
  const height = 170;
  const foot = 34;
  const head = 16;
  const most = Math.max(...bins.map((bin) => bin.count));
  const step = Math.min(60, (width - 2 * margin) / bins.length);
  const left = (width - step * bins.length) / 2;
  const every = Math.ceil(bins.length / 11);
  const marks = bins.map((bin, i) => {
    const size = bin.count === 0 ? 0 : Math.max(2, (bin.count / most) * (height - foot - head));
    const x = left + i * step;
    const group = draw("g", {}, draw("title", {}, `${bin.long}: ${plural(bin.count, unit)}`),
      draw("rect", { class: "column", x: x + step * 0.08, y: height - foot - size, width: step * 0.84, height: size, rx: 2 }));
    if (bin.count > 0 && step > 26) group.append(draw("text", { class: "amount", x: x + step / 2, y: height - foot - size - 4 }, amountText(bin.count)));
    if (i % every === 0) group.append(draw("text", { class: "axis", x: x + step / 2, y: height - foot + 16 }, bin.label));
    return group;
  });
  const total = bins.reduce((sum, bin) => sum + bin.count, 0);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}; the table below has the numbers`, class: "histogram" },
    draw("line", { class: "base", x1: 0, x2: width, y1: height - foot, y2: height - foot }), ...marks);
  const rows = bins.filter((bin) => bin.count > 0).map((bin) => make("tr", {}, make("th", { scope: "row" }, bin.long),
    make("td", { class: "right" }, number(bin.count)), make("td", { class: "right muted" }, shareText(bin.count, total))));
  return make("figure", { class: "chart" }, make(heading, {}, title), picture, make("details", {}, make("summary", {}, "As a table"),
    make("table", { class: "plain" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Range"),
      make("th", { scope: "col", class: "right" }, `${unit}s`), make("th", { scope: "col", class: "right" }, "Share"))), make("tbody", {}, ...rows))));
}

/// Bins from [exponent, count] pairs. Empty bins between them are added if there are only a few.
function binsOf(pairs, base) {
  const counts = new Map();
  for (const [exponent, count] of pairs) counts.set(exponent, (counts.get(exponent) ?? 0) + count);
  const known = [...counts.keys()].sort((a, b) => a - b);
  const first = known[0];
  const last = known[known.length - 1];
  const exponents = last - first < 40 ? Array.from({ length: known.length === 0 ? 0 : last - first + 1 }, (_, i) => first + i) : known;
  return exponents.map((e) => ({ ...rangeText(e, base), count: counts.get(e) ?? 0 }));
}

function rangeText(exponent, base) {
  if (base === 10) return { label: `1e${exponent}`, long: `1e${exponent} to 1e${exponent + 1}` };
  if (exponent === 0) return { label: "1", long: "1 ULP" };
  if (exponent < 14) return { label: number(2 ** exponent), long: `${number(2 ** exponent)} to ${number(2 ** (exponent + 1) - 1)} ULP` };
  return { label: `2^${exponent}`, long: `2^${exponent} to 2^${exponent + 1} ULP` };
}
