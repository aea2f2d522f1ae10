// A table of any length. Only the visible rows are in the document. Keyboard and roles follow the ARIA patterns grid
// and treegrid. The focus stays on the grid, which names its active row.

const ROW_HEIGHT = 30; // Includes the border. Larger text makes rows higher. page.css has the same number.
const HEAD_BORDER = 1;
const MAX_HEIGHT = 8e6; // Browsers place content within half a pixel up to here. Above it, the scroll bar is scaled.
const PRINTED_ROWS = 3000;

let gridCount = 0;

class Grid {
  /// columns: {title, key, width, align, sortable, cell(row)}; cell returns an element or a text.
  /// options: label, isTree, onSelect(row), onToggle(row), onSort(key). Rows of a tree have level, isOpen (null: a
  /// leaf), position and siblings.
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.id = `grid${++gridCount}`;
    this.rows = [];
    this.rowHeight = ROW_HEIGHT;
    this.barHeight = 0; // Height of the horizontal scroll bar.
    this.active = -1;
    this.sort = { key: columns[0].key, descending: false };
    this.isWhole = false;
    this.makeElements();
    const observer = new ResizeObserver(() => {
      this.render();
      this.schedule(); // Sizes must not be set inside the observer's callback.
    });
    observer.observe(this.element);
    observer.observe(this.probe);
    window.addEventListener("beforeprint", () => this.renderWhole(true));
    window.addEventListener("afterprint", () => this.renderWhole(false));
  }

  makeElements() {
    const template = this.columns.map((column) => column.width).join(" ");
    this.heads = this.columns.map((column) => this.makeHead(column));
    this.layer = make("div", { class: "layer", role: "rowgroup" });
    this.spacer = make("div", { class: "spacer" }, this.layer);
    this.note = make("p", { class: "printnote" });
    this.probe = make("div", { class: "probe", "aria-hidden": "true" }, "Ag");
    this.element = make("div", {
      class: "grid", id: this.id, role: this.options.isTree ? "treegrid" : "grid", tabindex: "0",
      "aria-label": this.options.label, "aria-colcount": this.columns.length, "aria-readonly": "true",
    }, make("div", { class: "head", role: "rowgroup" }, make("div", { role: "row", class: "row", "aria-rowindex": "1" }, ...this.heads)),
    this.spacer, this.note, this.probe);
    this.element.style.setProperty("--columns", template);
    this.element.addEventListener("scroll", () => this.schedule());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.layer.addEventListener("click", (event) => this.onClick(event));
    this.showSort();
  }

  makeHead(column) {
    const head = make("div", { role: "columnheader", class: `cell ${column.align ?? ""}` });
    if (!column.sortable) {
      head.append(column.title);
      return head;
    }
    head.append(make("button", { type: "button", tabindex: "-1", onclick: () => this.sortBy(column.key) }, column.title));
    return head;
  }

  sortBy(key) {
    const descending = this.sort.key === key ? !this.sort.descending : key !== this.columns[0].key;
    this.sort = { key, descending };
    this.showSort();
    this.options.onSort?.();
  }

  showSort() {
    this.columns.forEach((column, i) => {
      if (!column.sortable) return;
      const order = this.sort.descending ? "descending" : "ascending";
      this.heads[i].setAttribute("aria-sort", column.key === this.sort.key ? order : "none");
    });
  }

  /// Shows different rows. The active row stays active if it is among them.
  setRows(rows, keepScroll = false) {
    const active = this.rows[this.active];
    this.rows = rows;
    this.active = active === undefined ? -1 : rows.indexOf(active);
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    this.setHeights();
    if (!keepScroll) this.element.scrollTop = 0;
    this.render();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.measure();
      this.render();
    });
  }

  /// Measures the row height, which follows the reader's text size. The grid shows whole rows even with a horizontal
  /// scroll bar.
  measure() {
    const row = Math.max(ROW_HEIGHT, this.probe.offsetHeight);
    const bar = Math.max(0, this.element.offsetHeight - this.element.clientHeight - 2);
    if (row === this.rowHeight && bar === this.barHeight) return;
    this.rowHeight = row;
    this.barHeight = bar;
    this.element.style.setProperty("--row", `${row}px`);
    this.element.style.setProperty("--bar", `${bar}px`);
    this.setHeights();
  }

  setHeights() {
    this.spacer.style.height = `${Math.min(this.fullHeight(), MAX_HEIGHT)}px`;
  }

  fullHeight() {
    return this.rows.length * this.rowHeight;
  }

  /// The height of the area that shows rows, below the head.
  viewHeight() {
    return Math.max(0, this.element.clientHeight - this.rowHeight - HEAD_BORDER);
  }

  /// The pixels of rows per pixel of scrolling. Both ends of the list match both ends of the scroll bar.
  scale() {
    const view = this.viewHeight();
    return this.fullHeight() > MAX_HEIGHT ? (this.fullHeight() - view) / (MAX_HEIGHT - view) : 1;
  }

  render() {
    if (this.isWhole) return;
    const scrolled = this.element.scrollTop;
    const top = scrolled * this.scale();
    const from = Math.max(0, Math.floor(top / this.rowHeight) - 4);
    const count = Math.ceil(this.element.clientHeight / this.rowHeight) + 9;
    this.renderRange(from, Math.min(this.rows.length, from + count));
    this.layer.style.transform = `translateY(${scrolled - top + from * this.rowHeight}px)`;
  }

  renderRange(from, to) {
    const rows = [];
    for (let i = from; i < to; ++i) rows.push(this.makeRow(i));
    this.layer.replaceChildren(...rows);
    const isThere = this.active >= from && this.active < to;
    if (isThere) this.element.setAttribute("aria-activedescendant", `${this.id}r${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /// Renders all rows for printing, up to a limit.
  renderWhole(isWhole) {
    this.isWhole = isWhole;
    this.layer.style.transform = "";
    if (!isWhole) return this.render();
    const left = this.rows.length - PRINTED_ROWS;
    this.note.textContent = left > 0 ? `${number(left)} more rows are not printed; use the search to narrow the list.` : "";
    this.renderRange(0, Math.min(this.rows.length, PRINTED_ROWS));
  }

  makeRow(index) {
    const row = this.rows[index];
    const isActive = index === this.active;
    const element = make("div", {
      role: "row", class: `row${isActive ? " active" : ""}`, id: `${this.id}r${index}`, "data-index": index,
      "aria-rowindex": index + 2, "aria-selected": isActive ? "true" : "false",
    });
    if (this.options.isTree) {
      fill(element, { "aria-level": row.level + 1, "aria-expanded": row.isOpen === null ? null : `${row.isOpen}`,
        "aria-posinset": row.position, "aria-setsize": row.siblings }, []);
    }
    this.columns.forEach((column, i) => {
      const role = i === 0 ? "rowheader" : "gridcell";
      element.append(make("div", { role, class: `cell ${column.align ?? ""}` }, column.cell(row)));
    });
    return element;
  }

  onClick(event) {
    const element = event.target.closest("[data-index]");
    if (!element) return;
    const index = Number(element.dataset.index);
    const isToggle = event.target.closest(".twist") !== null;
    this.select(index);
    if (isToggle) this.options.onToggle?.(this.rows[index]);
    this.element.focus({ preventScroll: true });
  }

  select(index) {
    if (this.rows.length === 0) return;
    this.active = Math.max(0, Math.min(this.rows.length - 1, index));
    this.reveal();
    this.render();
    this.options.onSelect?.(this.rows[this.active]);
  }

  /// Scrolls just enough to show the active row.
  reveal() {
    const scale = this.scale();
    const top = this.active * this.rowHeight;
    const bottom = top + this.rowHeight - this.viewHeight();
    if (top < this.element.scrollTop * scale) this.element.scrollTop = Math.floor(top / scale);
    if (bottom > this.element.scrollTop * scale) this.element.scrollTop = Math.ceil(bottom / scale);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.element) return;
    const page = Math.max(1, Math.floor(this.viewHeight() / this.rowHeight) - 1);
    const to = { ArrowDown: this.active + 1, ArrowUp: this.active - 1, Home: 0, End: this.rows.length - 1,
      PageDown: this.active + page, PageUp: this.active - page }[event.key];
    if (to !== undefined) this.select(to);
    else if (!this.onTreeKey(event.key)) return;
    event.preventDefault();
  }

  onTreeKey(key) {
    const row = this.rows[this.active];
    if (!this.options.isTree || !row) return false;
    const toggle = () => this.options.onToggle(row);
    if (key === "Enter" || key === " ") return row.isOpen !== null && (toggle(), true);
    if (key === "ArrowRight") {
      if (row.isOpen === false) toggle();
      else if (row.isOpen) this.select(this.active + 1);
      return true;
    }
    if (key === "ArrowLeft") {
      if (row.isOpen) toggle();
      else this.selectParent(row);
      return true;
    }
    return false;
  }

  selectParent(row) {
    for (let i = this.active - 1; i >= 0; --i) {
      if (this.rows[i].level < row.level) return this.select(i);
    }
  }
}

/// A search field, a count for screen readers, buttons, a grid, and the details of the selected row.
function explorer({ grid, placeholder, label, onSearch, buttons = [], details }) {
  const field = make("input", { type: "search", placeholder, "aria-label": label, id: `${grid.id}search`, autocomplete: "off", spellcheck: "false" });
  const count = make("output", { class: "count", for: field.id, "aria-live": "polite" });
  let timer = 0;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => onSearch(field.value), 60);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      grid.element.focus();
      if (grid.active < 0) grid.select(0);
    }
  });
  grid.element.addEventListener("keydown", (event) => {
    if (event.key !== "/") return;
    event.preventDefault();
    field.focus();
  });
  details.setAttribute("tabindex", "0");
  const element = make("div", { class: "explorer" },
    make("div", { class: "list" }, make("div", { class: "bar", role: "search" }, field, ...buttons, count), grid.element), details);
  return { element, field, say: (text) => (count.textContent = text) };
}
