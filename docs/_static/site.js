// What is wider than the page can be scrolled with the keyboard, too.
(() => {
  const reach = () => {
    for (const part of document.querySelectorAll("pre, .table-wrapper, .sig")) {
      if (part.scrollWidth > part.clientWidth) {
        part.tabIndex = 0;
      } else {
        part.removeAttribute("tabindex");
      }
    }
  };
  addEventListener("load", reach);
  addEventListener("resize", reach);
})();
