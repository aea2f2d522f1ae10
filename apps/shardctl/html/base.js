"use strict";
// Helpers of all views: elements, texts for people, colours, the theme. Texts of the document reach the page only
// through textContent and attributes, so no text is ever parsed as markup.

/// An element with attributes (`on...` adds a listener; null and false are skipped) and children (elements and texts).
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/// An SVG element, with the same arguments as make().
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/// Escapes control characters, direction marks and invisible characters, so that a name cannot disguise itself.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
function shown(text) {
  return text.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/// A name with line-break opportunities after its dots, slashes and underscores.
function breakable(text) {
  const name = make("bdi", { class: "name" });
  for (const part of shown(text).slice(0, 4000).split(/(?<=[./_])/)) name.append(part, make("wbr"));
  return name;
}

const GROUPED = new Intl.NumberFormat("en-US");
const number = (value) => GROUPED.format(value);
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

function bytesText(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB", "PB", "EB"];
  let value = bytes / 1000;
  let unit = 0;
  for (; value >= 999.5 && unit + 1 < units.length; ++unit) value /= 1000;
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${units[unit]}`;
}

/// Rounded counts such as 8.03 B or 596 M, in the usual form of parameter counts.
function amountText(count) {
  if (count < 10000) return number(count);
  const units = ["k", "M", "B", "T"];
  let value = count / 1000;
  let unit = 0;
  for (; value >= 999.5 && unit + 1 < units.length; ++unit) value /= 1000;
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${units[unit]}`;
}

function shareText(part, whole) {
  if (whole === 0) return "0%";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.1 ? "< 0.1%" : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}

const product = (numbers) => numbers.reduce((all, each) => all * each, 1);
const shapeText = (shape) => (shape.length === 0 ? "scalar" : shape.map(number).join(" × "));

/// The sort key of a name: texts and numbers in turn. Numbers in names compare as numbers, so layer 2 precedes layer
/// 10.
const nameKey = (name) => name.split(/(\d+)/).map((part, i) => (i % 2 === 1 ? Number(part) : part));

function byNameKey(x, y) {
  for (let i = 0; i < Math.min(x.length, y.length); ++i) {
    if (x[i] !== y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return x.length - y.length;
}

const byName = (a, b) => byNameKey(nameKey(a), nameKey(b));

// Consecutive hues differ by the golden angle, so that neighbours differ however many there are. Every third is
// lighter, every third darker. All are readable under dark text in both themes.
function colourOf(index) {
  const hue = (250 + index * 137.508) % 360;
  return `oklch(${[0.76, 0.68, 0.84][index % 3]} ${[0.125, 0.13, 0.11][index % 3]} ${hue.toFixed(1)})`;
}
const NO_RANK = "var(--unknown)";
const rankColour = (rank) => (rank === null ? NO_RANK : colourOf(rank));
const rankText = (rank) => (rank === null ? "unknown rank" : `rank ${rank}`);

/// "0-3, 6": sorted ranks, consecutive ones joined.
function runsText(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const runs = [];
  for (const each of sorted) {
    const last = runs[runs.length - 1];
    if (last && last[1] + 1 === each) last[1] = each;
    else runs.push([each, each]);
  }
  const texts = runs.map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`));
  return texts.length > 6 ? `${texts.slice(0, 5).join(", ")}, … ${texts[texts.length - 1]}` : texts.join(", ");
}

// ---- Theme: the system's until the reader chooses one.

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function storedTheme() {
  try {
    return localStorage.getItem("shardctl-theme") ?? "auto";
  } catch {
    return "auto"; // Browsers may deny storage to pages from files.
  }
}

function themeButton() {
  const button = make("button", { type: "button", class: "quiet", id: "theme" });
  const names = Object.keys(THEMES);
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = THEMES[theme];
    try {
      localStorage.setItem("shardctl-theme", theme);
    } catch {
      // Without storage, the choice lasts as long as the page.
    }
  };
  let current = names.includes(storedTheme()) ? storedTheme() : "auto";
  show(current);
  button.addEventListener("click", () => {
    current = names[(names.indexOf(current) + 1) % names.length];
    show(current);
  });
  return button;
}

// ---- Parts of a page.

function pageHead(verb, title, badges) {
  document.title = `${shown(title)} – shardctl ${verb}`;
  document.getElementById("top").append(
    make("div", { class: "brand" }, make("span", { class: "logo", "aria-hidden": "true" }, make("i"), make("i"), make("i"), make("i")),
      make("span", {}, "shardctl ", make("b", {}, verb))),
    make("h1", {}, breakable(title)),
    make("ul", { class: "badges", "aria-label": "Facts" }, ...badges.filter(Boolean).map((text) => make("li", {}, shown(text)))),
    themeButton(),
  );
}

/// A row of figures: [what, figure, detail].
function figures(list) {
  return make("dl", { class: "figures" }, ...list.filter(Boolean).map(([what, figure, detail]) =>
    make("div", {}, make("dt", {}, what), make("dd", {}, make("strong", {}, figure), detail ? make("small", {}, detail) : null))));
}

function card(title, ...content) {
  return make("section", { class: "card", "aria-label": title }, make("h2", {}, title), ...content);
}

/// Facts as a list of [name, value]. Values are texts or elements.
function facts(list) {
  return make("dl", { class: "facts" }, ...list.filter(Boolean).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

/// Tabs of [title, element]. The caller omits empty ones.
function tabs(list) {
  const bar = make("div", { role: "tablist", class: "tabs", "aria-label": "Parts of the document" });
  const panels = list.map(([, content], i) => make("div", { role: "tabpanel", id: `panel${i}`, "aria-labelledby": `tab${i}` }, content));
  const buttons = list.map(([title], i) => make("button", { type: "button", role: "tab", id: `tab${i}`, "aria-controls": `panel${i}` }, title));
  const choose = (chosen, focus) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", i === chosen);
      button.tabIndex = i === chosen ? 0 : -1;
      panels[i].hidden = i !== chosen;
    });
    if (focus) buttons[chosen].focus();
    panels[chosen].dispatchEvent(new CustomEvent("shown", { bubbles: true }));
    window.dispatchEvent(new Event("resize"));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => choose(i, false)));
  bar.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + buttons.length) % buttons.length, true);
  });
  bar.append(...buttons);
  choose(0, false);
  return make("div", {}, bar, ...panels);
}
