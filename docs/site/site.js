// Names and focus for elements that the theme's script adds: the buttons of each code block, and tables that scroll.
const complete = () => {
  for (const nav of document.querySelectorAll(".md-code__nav:not([aria-label])")) {
    nav.setAttribute("aria-label", `Code ${nav.parentElement.id.replace(/\D/g, "")}`);
  }
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) table.tabIndex = 0;
};
new MutationObserver(complete).observe(document.body, {childList: true, subtree: true});
complete();
