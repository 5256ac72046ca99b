"use strict";
// Examples are in the page already; this shows a few at a time, and those in which a text occurs.
(() => {
  const PAGE = 5;
  const number = (value) => value.toLocaleString("en-US");

  const highlight = (pre, text, wanted) => {
    pre.replaceChildren();
    const lower = text.toLowerCase();
    // Lower case can be longer than the text, as of U+0130; then places would be wrong.
    let begin = 0;
    for (let at = lower.length === text.length && wanted ? lower.indexOf(wanted) : -1; at >= 0; ) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at, at + wanted.length);
      pre.append(text.slice(begin, at), mark);
      begin = at + wanted.length;
      at = lower.indexOf(wanted, begin);
    }
    pre.append(text.slice(begin));
  };

  for (const examples of document.querySelectorAll(".examples")) {
    const form = examples.querySelector("form");
    const input = form.querySelector("input");
    const select = form.querySelector("select");
    const [back, next] = form.querySelectorAll("button");
    const status = form.querySelector("output");
    const all = [...examples.querySelectorAll("article")].map((article) => {
      const pre = article.querySelector("pre");
      const text = pre.textContent;
      return { article, pre, text, kinds: article.dataset.kinds.split(" "), all: article.textContent.toLowerCase() };
    });
    let first = 0;

    const show = () => {
      const wanted = input.value.toLowerCase();
      const found = all.filter(
        (each) => (!select.value || each.kinds.includes(select.value)) && (!wanted || each.all.includes(wanted)),
      );
      first = Math.max(0, Math.min(first, Math.floor((found.length - 1) / PAGE) * PAGE));
      const shown = new Set(found.slice(first, first + PAGE));
      for (const each of all) {
        each.article.hidden = !shown.has(each);
        if (shown.has(each)) highlight(each.pre, each.text, wanted);
      }
      const last = Math.min(first + PAGE, found.length);
      status.textContent = found.length ? `${number(first + 1)} to ${number(last)} of ${number(found.length)}` : "none found";
      // Not `disabled`, which would take the focus from the keyboard.
      back.setAttribute("aria-disabled", String(first === 0));
      next.setAttribute("aria-disabled", String(last >= found.length));
    };
    const leaf = (pages) => {
      first += pages * PAGE;
      show();
    };
    const restart = () => {
      first = 0;
      show();
    };

    input.addEventListener("input", restart);
    select.addEventListener("change", restart);
    back.addEventListener("click", () => leaf(-1));
    next.addEventListener("click", () => leaf(1));
    form.addEventListener("submit", (event) => event.preventDefault());
    examples.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select, pre")) return;
      const pages = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (pages) leaf(pages);
    });
    form.hidden = false;
    show();
  }
})();
