// A table of any length: only the rows in view are in the document. Keyboard and roles follow the ARIA patterns of grid
// and treegrid; the focus stays on the grid, which names its active row.

const ROW_HEIGHT = 30;
const HEAD_HEIGHT = 31; // It stays in view above the rows.
const MAX_HEIGHT = 15e6; // Browsers cannot make elements much higher; beyond that the scroll bar is scaled.
const PRINTED_ROWS = 3000;

let gridCount = 0;

class Grid {
  /// columns: {title, key, width, align, sortable, cell(row)}; cell returns an element or a text.
  /// options: label, isTree, onSelect(row), onToggle(row), onSort(key). Rows of trees have level, isOpen (null: a leaf),
  /// position and siblings.
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.id = `grid${++gridCount}`;
    this.rows = [];
    this.active = -1;
    this.sort = { key: columns[0].key, descending: false };
    this.isWhole = false;
    this.makeElements();
    new ResizeObserver(() => this.render()).observe(this.element);
    window.addEventListener("beforeprint", () => this.renderWhole(true));
    window.addEventListener("afterprint", () => this.renderWhole(false));
  }

  makeElements() {
    const template = this.columns.map((column) => column.width).join(" ");
    this.heads = this.columns.map((column) => this.makeHead(column));
    this.layer = make("div", { class: "layer", role: "rowgroup" });
    this.spacer = make("div", { class: "spacer" }, this.layer);
    this.note = make("p", { class: "printnote" });
    this.element = make("div", {
      class: "grid", id: this.id, role: this.options.isTree ? "treegrid" : "grid", tabindex: "0",
      "aria-label": this.options.label, "aria-colcount": this.columns.length, "aria-readonly": "true",
    }, make("div", { class: "head", role: "rowgroup" }, make("div", { role: "row", class: "row", "aria-rowindex": "1" }, ...this.heads)),
    this.spacer, this.note);
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

  /// Shows other rows. The active one stays active where it is still there.
  setRows(rows, keepScroll = false) {
    const active = this.rows[this.active];
    this.rows = rows;
    this.active = active === undefined ? -1 : rows.indexOf(active);
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    const height = rows.length * ROW_HEIGHT;
    this.scale = Math.max(1, height / MAX_HEIGHT);
    this.spacer.style.height = `${height / this.scale}px`;
    if (!keepScroll) this.element.scrollTop = 0;
    this.render();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.render();
    });
  }

  render() {
    if (this.isWhole) return;
    const top = this.element.scrollTop;
    const from = Math.max(0, Math.floor((top * this.scale) / ROW_HEIGHT) - 4);
    const count = Math.ceil(this.element.clientHeight / ROW_HEIGHT) + 9;
    this.renderRange(from, Math.min(this.rows.length, from + count));
    const shift = this.scale === 1 ? from * ROW_HEIGHT : top - ((top * this.scale) % ROW_HEIGHT) - 4 * ROW_HEIGHT;
    this.layer.style.transform = `translateY(${Math.max(0, shift)}px)`;
  }

  renderRange(from, to) {
    const rows = [];
    for (let i = from; i < to; ++i) rows.push(this.makeRow(i));
    this.layer.replaceChildren(...rows);
    const isThere = this.active >= from && this.active < to;
    if (isThere) this.element.setAttribute("aria-activedescendant", `${this.id}r${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /// For paper: all rows, up to a limit.
  renderWhole(isWhole) {
    this.isWhole = isWhole;
    this.layer.style.transform = "";
    if (!isWhole) return this.render();
    const left = this.rows.length - PRINTED_ROWS;
    this.note.textContent = left > 0 ? `${number(left)} more rows are not printed; search to choose.` : "";
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

  /// Scrolls as little as needed.
  reveal() {
    const top = (this.active * ROW_HEIGHT) / this.scale;
    const height = this.element.clientHeight - HEAD_HEIGHT;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + ROW_HEIGHT > this.element.scrollTop + height) this.element.scrollTop = top + ROW_HEIGHT - height;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.element) return;
    const page = Math.max(1, Math.floor((this.element.clientHeight - HEAD_HEIGHT) / ROW_HEIGHT) - 1);
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

/// A search field, a count that is read aloud, buttons, a grid and beside it the details of what is selected.
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
