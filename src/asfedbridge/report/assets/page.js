"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  root.classList.add("scripted");

  // Theme: as the system has it, light, dark. Some browsers keep nothing for pages from disk.
  const themes = ["auto", "light", "dark"];
  const remember = (value) => { try { localStorage.setItem("theme", value); } catch { /* not kept */ } };
  const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const button = byId("theme");
  const setTheme = (name) => {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
  };
  let theme = themes.includes(recall()) ? recall() : "auto";
  setTheme(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    remember(theme);
    setTheme(theme);
  });

  // A link to a run opens it.
  const openTarget = () => {
    const target = byId(location.hash.slice(1));
    if (target && target.matches("details.run")) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  const runs = byId("runs");
  const plot = byId("overview");
  if (runs) {
    const body = runs.tBodies[0];
    const details = byId("details");
    const number = (text) => /^[-+]?[\d.,]+$/.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN;

    // Sorting: numbers as numbers, cells without a value last in both directions.
    const compare = (a, b, sign) => {
      const blank = (text) => text === "-" || text === "";
      if (blank(a) || blank(b)) return blank(a) - blank(b);
      const [x, y] = [number(a), number(b)];
      if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
      return sign * a.localeCompare(b, undefined, { numeric: true });
    };
    all("thead th", runs).forEach((head, column) => head.firstChild.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      all("thead th", runs).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows];
      const keys = new Map(rows.map((row) => [row, row.cells[column].textContent]));
      rows.sort((a, b) => compare(keys.get(a), keys.get(b), down ? -1 : 1));
      for (const row of rows) {
        body.append(row);
        const section = byId(row.dataset.run);
        if (section) details.append(section);
      }
    }));

    // Filtering: rows, curves, legend and details together.
    const search = byId("search");
    const selects = all("#filters select");
    const group = byId("group");
    const lines = plot ? all(".line", plot) : [];
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const visible = new Set();
      for (const row of body.rows) {
        const text = [...row.cells].map((cell) => cell.textContent.toLowerCase()).join("\n");
        const fits = words.every((word) => text.includes(word)) &&
          selects.every((s) => s.value === "*" || row.cells[s.dataset.column].textContent === s.value);
        row.classList.toggle("off", !fits);
        byId(row.dataset.run)?.classList.toggle("off", !fits);
        if (fits) visible.add(row.dataset.run);
      }
      byId("shown").textContent = `${visible.size} of ${body.rows.length} runs`;
      if (!plot) return;
      plot.dataset.group = group.value;
      const styles = new Set();
      for (const line of lines) {
        const on = visible.has(line.dataset.run) && line.dataset.group === group.value;
        line.classList.toggle("on", on);
        if (on) styles.add(line.dataset.series);
      }
      for (const item of all(".legend li", plot)) item.classList.toggle("off", !styles.has(item.textContent));
    };
    byId("filters").addEventListener("input", apply);
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    group?.addEventListener("input", apply);
    apply();

    // A row and its curve find each other.
    const light = (run) => {
      plot?.classList.toggle("dim", Boolean(run));
      lines.forEach((line) => line.classList.toggle("hot", line.dataset.run === run));
      for (const row of body.rows) row.classList.toggle("hot", row.dataset.run === run);
    };
    body.addEventListener("pointerover", (event) => light(event.target.closest("tr")?.dataset.run));
    body.addEventListener("pointerleave", () => light());
    for (const line of lines) {
      line.addEventListener("pointerenter", () => light(line.dataset.run));
      line.addEventListener("pointerleave", () => light());
    }
  }

  // Values under the pointer, read from the paths themselves.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  const points = (line) => line.querySelector("path").getAttribute("d").slice(1).split("L").map((p) => p.split(",").map(Number));
  const scale = (value, [from, to, low, high]) => low + (value - from) / (to - from) * (high - low);
  const short = (value) => Math.abs(value) >= 1 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
  const look = (event) => {
    const chart = event.currentTarget;
    const box = chart.getBoundingClientRect();
    const unit = chart.viewBox.baseVal.width / box.width;
    const [px, py] = [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
    const [xs, ys] = [chart.dataset.x, chart.dataset.y].map((text) => text.split(" ").map(Number));
    const found = all(".line", chart).filter((line) => line.getClientRects().length).map((line) => {
      const near = points(line).reduce((a, b) => Math.abs(b[0] - px) < Math.abs(a[0] - px) ? b : a);
      return { label: line.dataset.label, x: near[0], y: near[1] };
    });
    if (!found.length) return;
    const x = found.reduce((a, b) => Math.abs(b.x - px) < Math.abs(a.x - px) ? b : a).x;
    const near = found.sort((a, b) => Math.abs(a.y - py) - Math.abs(b.y - py)).slice(0, 8).sort((a, b) => a.y - b.y);
    tip.replaceChildren(...[`round ${Math.round(scale(x, xs))}`, ...near.map((p) => `${short(scale(p.y, ys))}  ${p.label}`)].map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(event.pageX + 14, room))}px`;
    tip.style.top = `${event.pageY + 16}px`;
    cursor.setAttribute("d", `M${x},${ys[1]}V${ys[0]}`);
    chart.append(cursor);
  };
  for (const chart of all("svg.lines")) {
    chart.addEventListener("pointermove", look);
    chart.addEventListener("pointerleave", () => { tip.hidden = true; cursor.remove(); });
  }
})();
