"use strict";
// The page is whole without this: filters, search and the enlarged pictures are what it adds.
// Texts are moved as text or as nodes, never as HTML.
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  document.documentElement.classList.add("js");
  const tiles = all(".tile");
  const isShown = (element) => !element.hidden;

  const listen = (id, event, act) => {
    const element = byId(id);
    if (element) element.addEventListener(event, act);
    return element;
  };
  const counted = (shown, of, what) => (shown === of ? "" : `${shown} of ${of} ${what}`);

  // Pictures by split and class.
  const bySplit = listen("filter-split", "change", () => filterTiles());
  const byClass = listen("filter-class", "change", () => filterTiles());
  const clear = listen("filter-clear", "click", () => {
    for (const choice of [bySplit, byClass]) if (choice) choice.value = "";
    filterTiles();
    (byClass || bySplit).focus();
  });
  function filterTiles() {
    const split = bySplit ? bySplit.value : "";
    const label = byClass ? byClass.value : "";
    for (const tile of tiles) {
      const isOfClass = !label || tile.dataset.classes.split(" ").includes(label);
      tile.hidden = !isOfClass || (split !== "" && tile.dataset.split !== split);
    }
    const isFiltered = split !== "" || label !== "";
    for (const sheet of all(".sheet")) {
      sheet.hidden = isFiltered && !all(".tile", sheet).some(isShown);
      for (const above of all(".above", sheet)) above.hidden = isFiltered;
    }
    const apart = document.querySelector(".classes-apart");
    if (apart) apart.hidden = !all(".class-sheet").some(isShown);
    clear.disabled = !isFiltered;
    byId("filter-count").textContent = counted(tiles.filter(isShown).length, tiles.length, "pictures");
  }
  if (bySplit || byClass) byId("filters").hidden = false;
  for (const link of all("a[data-class]")) {
    link.addEventListener("click", () => {
      byClass.value = link.dataset.class;
      if (bySplit) bySplit.value = "";
      filterTiles();
    });
  }

  // Classes by name, and in other orders.
  const table = byId("class-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = all("tr", body);
    const gap = rows.find((row) => row.classList.contains("gap"));
    const classRows = rows.filter((row) => row !== gap);
    const nameOf = (row) => row.querySelector("th").textContent;
    const numberOf = (row, cell) => Number(row.querySelector(cell).textContent.replaceAll(",", ""));
    const places = new Map(rows.map((row, place) => [row, place]));
    const orders = {
      rank: (a, b) => places.get(a) - places.get(b),
      rare: (a, b) => places.get(b) - places.get(a),
      name: (a, b) => nameOf(a).localeCompare(nameOf(b)),
      id: (a, b) => numberOf(a, ".id") - numberOf(b, ".id"),
    };
    const find = listen("class-find", "input", () => {
      const wanted = find.value.trim().toLowerCase();
      for (const row of classRows) row.hidden = !nameOf(row).toLowerCase().includes(wanted);
      if (gap) gap.hidden = wanted !== "";
      const shown = classRows.filter(isShown).length;
      byId("class-count").textContent = counted(shown, classRows.length, "classes");
    });
    const order = listen("class-order", "change", () => {
      const hasGap = order.value === "rank" || order.value === "rare";
      body.append(...(hasGap ? rows : classRows).toSorted(orders[order.value]));
      if (gap && !hasGap) body.append(gap);
    });
    byId("class-filters").hidden = false;
  }

  // A picture, enlarged. A dialog keeps the focus, closes by Escape, and gives the focus back.
  const box = byId("lightbox");
  if (!box) return;
  const stage = byId("lightbox-picture");
  let current = null;
  const shownTiles = () => tiles.filter(isShown);

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
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) {
      step(steps[event.key]);
      event.preventDefault();
    } else if (event.key === "Tab") {
      // Its ends meet: a browser's own dialog lets the focus out to the address bar.
      const stops = all("button", box);
      const [leaving, entering] = event.shiftKey ? [stops[0], stops.at(-1)] : [stops.at(-1), stops[0]];
      if (document.activeElement === leaving || document.activeElement === box) {
        entering.focus();
        event.preventDefault();
      }
    }
  });
  window.addEventListener("resize", fit);
})();
