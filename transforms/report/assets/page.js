"use strict";
// The page works without this; it adds filters, search and enlarged pictures.
// Texts are set as text or as nodes, never as HTML.
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  document.documentElement.classList.add("js");
  const tiles = all(".tile");
  const shownTiles = () => tiles.filter((tile) => !tile.hidden);
  const counted = (shown, of, what) => (shown === of ? "" : `${shown} of ${of} ${what}`);
  const listen = (id, event, act) => {
    const element = byId(id);
    if (element) element.addEventListener(event, act);
    return element;
  };

  // Filter pictures by split and class.
  const bySplit = listen("filter-split", "change", () => filterTiles());
  const byClass = listen("filter-class", "change", () => filterTiles());
  function filterTiles() {
    const split = bySplit ? bySplit.value : "";
    const label = byClass ? byClass.value : "";
    for (const tile of tiles) {
      const isOfClass = !label || tile.dataset.classes.split(" ").includes(label);
      tile.hidden = !isOfClass || (split !== "" && tile.dataset.split !== split);
    }
    byId("filter-count").textContent = counted(shownTiles().length, tiles.length, "pictures");
  }
  if (bySplit || byClass) byId("filters").hidden = false;
  for (const link of all("a[data-class]")) {
    link.addEventListener("click", () => {
      byClass.value = link.dataset.class;
      if (bySplit) bySplit.value = "";
      filterTiles();
    });
  }

  // Search classes by name.
  const find = listen("class-find", "input", () => {
    const rows = all("#class-table tbody tr");
    const wanted = find.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = !row.querySelector("th").textContent.toLowerCase().includes(wanted);
    }
    const shown = rows.filter((row) => !row.hidden).length;
    byId("class-count").textContent = counted(shown, rows.length, "classes");
  });
  if (find) byId("class-filter").hidden = false;

  // The enlarged picture is a dialog: it keeps the focus, closes on Escape, and then returns it.
  const box = byId("lightbox");
  if (!box) return;
  const stage = byId("lightbox-picture");
  let current = null;

  function fit() {
    const image = stage.querySelector("img");
    if (!image) return;
    const [width, height] = [image.naturalWidth || image.width, image.naturalHeight || image.height];
    const room = [stage.clientWidth - 16, Math.max(160, window.innerHeight * 0.66)];
    const scale = Math.min(room[0] / width, room[1] / height, Math.max(3, 480 / width));
    image.width = Math.max(1, Math.round(width * scale));
    image.height = Math.max(1, Math.round(height * scale));
    image.parentNode.classList.toggle("coarse", scale >= 4);
  }
  function show(tile) {
    current = tile;
    const among = shownTiles();
    stage.replaceChildren(tile.querySelector(".frame").cloneNode(true));
    byId("lightbox-facts").replaceChildren(tile.querySelector(".facts").cloneNode(true));
    byId("lightbox-title").textContent = tile.querySelector(".what").textContent;
    byId("lightbox-place").textContent = `${among.indexOf(tile) + 1} of ${among.length}`;
    fit();
  }
  function step(by) {
    const among = shownTiles();
    show(among[(among.indexOf(current) + by + among.length) % among.length]);
  }
  for (const tile of tiles) {
    const open = document.createElement("button");
    open.type = "button";
    open.className = "open";
    open.setAttribute("aria-label", `Enlarge ${tile.querySelector("img").alt}`);
    open.addEventListener("click", () => {
      box.showModal();
      show(tile);
      byId("lightbox-close").focus();
    });
    tile.querySelector(".mat").append(open);
  }
  listen("lightbox-previous", "click", () => step(-1));
  listen("lightbox-next", "click", () => step(1));
  listen("lightbox-close", "click", () => box.close());
  box.addEventListener("click", (event) => {
    if (event.target === box) box.close();
  });
  box.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps && !(event.altKey || event.ctrlKey || event.metaKey)) {
      step(steps[event.key]);
      event.preventDefault();
    }
  });
  window.addEventListener("resize", fit);
})();
