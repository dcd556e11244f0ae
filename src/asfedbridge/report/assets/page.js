"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  root.classList.add("scripted");

  // Theme: auto (follow the system), light or dark. Some browsers have no storage for pages opened from disk.
  const themes = ["auto", "light", "dark"];
  const remember = (value) => { try { localStorage.setItem("theme", value); } catch { /* no storage */ } };
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

  // A page with unfinished runs reloads itself, with the same choices and the same runs unfolded.
  if (root.dataset.refresh) {
    const fields = () => all("select, input");
    const folds = () => all("details");
    const key = `state ${location.pathname}`;
    try {
      const state = JSON.parse(sessionStorage.getItem(key)) ?? { values: [], open: [] };
      if (state.values.length === fields().length) fields().forEach((field, i) => { field.value = state.values[i]; });
      if (state.open.length === folds().length) folds().forEach((fold, i) => { fold.open = state.open[i]; });
    } catch { /* no storage */ }
    addEventListener("pagehide", () => {
      const state = { values: fields().map((field) => field.value), open: folds().map((fold) => fold.open) };
      try { sessionStorage.setItem(key, JSON.stringify(state)); } catch { /* no storage */ }
    });
    setTimeout(() => location.reload(), 1000 * root.dataset.refresh);
  }

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
    const runsOf = (line) => line.dataset.run.split(" ");
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
      plot.dataset.axis = byId("axis")?.value ?? "rounds";
      // A mean is drawn if all its runs pass the filters, and stands for them; otherwise the runs are drawn.
      const averaged = new Set();
      if (byId("lines")?.value === "mean") {
        for (const line of lines) {
          const members = runsOf(line);
          if (members.length > 1 && members.every((run) => visible.has(run))) members.forEach((run) => averaged.add(run));
        }
      }
      const styles = new Set();
      for (const line of lines) {
        const members = runsOf(line);
        const chosen = members.length > 1 ? averaged.has(members[0]) : visible.has(members[0]) && !averaged.has(members[0]);
        const on = chosen && line.dataset.group === group.value;
        line.classList.toggle("on", on);
        if (on) styles.add(line.dataset.series);
      }
      for (const item of all(".legend li", plot)) item.classList.toggle("off", !styles.has(item.textContent));
    };
    byId("filters").addEventListener("input", apply);
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["group", "axis", "lines"]) byId(id)?.addEventListener("input", apply);
    apply();

    // Hovering over a row highlights its curve, and the reverse.
    const light = (run) => {
      plot?.classList.toggle("dim", Boolean(run));
      lines.forEach((line) => line.classList.toggle("hot", runsOf(line).includes(run)));
      for (const row of body.rows) row.classList.toggle("hot", row.dataset.run === run);
    };
    body.addEventListener("pointerover", (event) => light(event.target.closest("tr")?.dataset.run));
    body.addEventListener("pointerleave", () => light());
    for (const line of lines) {
      line.addEventListener("pointerenter", () => light(runsOf(line)[0]));
      line.addEventListener("pointerleave", () => light());
    }
  }

  // Legends: hovering over an entry highlights its lines, clicking hides or shows them. The charts of the overview act as one.
  for (const item of all("figure .legend li")) {
    const scope = item.closest("#overview") ?? item.closest("figure");
    const mine = all(".line", scope).filter((line) => (line.dataset.series || line.dataset.label) === item.textContent);
    const twins = all(".legend li", scope).filter((other) => other.textContent === item.textContent);
    if (!mine.length) continue;
    item.tabIndex = 0;
    item.setAttribute("role", "switch");
    item.setAttribute("aria-checked", "true");
    const highlight = (on) => {
      scope.classList.toggle("dim", on);
      mine.forEach((line) => line.classList.toggle("hot", on));
    };
    const toggle = () => {
      const shown = item.classList.contains("muted");
      for (const twin of twins) {
        twin.classList.toggle("muted", !shown);
        twin.setAttribute("aria-checked", String(shown));
      }
      mine.forEach((line) => line.classList.toggle("off", !shown));
    };
    item.addEventListener("pointerenter", () => highlight(true));
    item.addEventListener("pointerleave", () => highlight(false));
    item.addEventListener("click", toggle);
    item.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
    });
  }

  // Downloads: tables as CSV, figures as SVG with the styles of the page and a legend.
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  const fileName = (text, ending) => `${text.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60) || "data"}.${ending}`;
  const download = (label, title, action) => {
    const element = document.createElement("button");
    element.type = "button";
    element.className = "save";
    element.textContent = label;
    element.title = title;
    element.addEventListener("click", action);
    return element;
  };
  const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  // A spreadsheet runs a cell that begins with one of these as a formula; numbers are left alone.
  const inert = (text) => /^[=@\t\r]|^[-+](?![\d.])/.test(text) ? `'${text}` : text;
  const csv = (rows) => rows.map((row) => `${row.map((cell) => quoted(inert(cell))).join(",")}\n`).join("");
  for (const frame of all(".scroll")) {
    const table = frame.querySelector("table");
    const heading = () => {
      let before = frame.previousElementSibling;
      while (before && !/^H[1-4]$/.test(before.tagName)) before = before.previousElementSibling;
      return before?.textContent ?? document.title;
    };
    frame.after(download("CSV", "Download this table as CSV", () => {
      const rows = [...table.rows].filter((row) => !row.classList.contains("off"));
      save(fileName(heading(), "csv"), "text/csv", csv(rows.map((row) => [...row.cells].map((cell) => cell.textContent))));
    }));
  }
  const STYLES = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity",
    "font-family", "font-size", "font-weight", "text-anchor", "display"];
  const flatten = (original) => {
    const copy = original.cloneNode(true);
    const copies = [copy, ...all("*", copy)];
    [original, ...all("*", original)].forEach((element, i) => {
      const style = getComputedStyle(element);
      for (const name of STYLES) copies[i].style.setProperty(name, style.getPropertyValue(name));
      copies[i].removeAttribute("class");
    });
    return copy;
  };
  const drawing = (figure) => {
    const namespace = "http://www.w3.org/2000/svg";
    const make = (name, attributes) => {
      const element = document.createElementNS(namespace, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const charts = all("svg.chart", figure);
    const origin = charts[0].getBoundingClientRect();
    const unit = charts[0].viewBox.baseVal.width / origin.width;
    const whole = make("svg", { xmlns: namespace });
    const write = (text, x, y, size, anchor = "start") => {
      const style = `font: ${size}px sans-serif; fill: ${getComputedStyle(document.body).color}; text-anchor: ${anchor}`;
      const element = make("text", { x, y, style });
      element.textContent = text;
      whole.append(element);
    };
    let [width, height] = [0, 0];
    for (const chart of charts) {
      const place = chart.getBoundingClientRect();
      const [x, y] = [(place.left - origin.left) * unit, (place.top - origin.top) * unit + 18];
      const copy = flatten(chart);
      for (const used of all("use", copy)) used.replaceWith(flatten(byId(used.getAttribute("href").slice(1))));
      for (const [key, value] of Object.entries({ x, y, width: place.width * unit, height: place.height * unit })) {
        copy.setAttribute(key, value);
      }
      whole.append(copy);
      [width, height] = [Math.max(width, x + place.width * unit), Math.max(height, y + place.height * unit)];
      const title = chart.parentElement.querySelector(".panel-title");
      if (title) {
        write(title.firstChild.textContent, x, y - 4, 12);
        write(title.lastChild.textContent, x + place.width * unit, y - 4, 12, "end");
      }
    }
    const entries = all(".legend li", figure).filter((item) => item.getClientRects().length && !item.classList.contains("muted"));
    for (const item of entries) {
      const swatch = flatten(item.querySelector("svg"));
      for (const [key, value] of Object.entries({ x: 8, y: height + 4, width: 30, height: 12 })) swatch.setAttribute(key, value);
      whole.append(swatch);
      write(item.textContent, 46, height + 14, 12);
      height += 16;
    }
    height += 8;
    whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
    whole.setAttribute("width", width);
    whole.setAttribute("height", height);
    whole.style.background = getComputedStyle(figure).backgroundColor;
    return new XMLSerializer().serializeToString(whole);
  };
  const shownLines = (from) => all(".line[data-points]", from).filter((line) => line.getClientRects().length);
  const points = (line) => line.dataset.points.split(" ").map((point) => point.split(","));
  const values = (figure) => {
    const rows = [["line", figure.querySelector("svg.lines").dataset.unit, "value"]];
    for (const line of shownLines(figure)) for (const [x, y] of points(line)) rows.push([line.dataset.label, x, y]);
    return csv(rows);
  };
  for (const figure of all("figure")) {
    const caption = figure.querySelector("figcaption");
    const name = caption.textContent;
    const add = (label, title, type, content) =>
      caption.append(download(label, title, () => save(fileName(name, label.toLowerCase()), type, content(figure))));
    add("SVG", "Download this figure as SVG", "image/svg+xml", drawing);
    if (figure.querySelector("svg.lines")) add("CSV", "Download the points of these lines as CSV", "text/csv", values);
  }

  // Values under the pointer.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  const scale = (value, [from, to, low, high]) => low + (value - from) / (to - from) * (high - low);
  const unscale = (value, [from, to, low, high]) => from + (value - low) / (high - low) * (to - from);
  const short = (value) => Math.abs(value) >= 1 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
  const nearest = (items, distance) => items.reduce((a, b) => distance(b) < distance(a) ? b : a);
  const look = (event) => {
    const chart = event.currentTarget;
    const box = chart.getBoundingClientRect();
    const unit = chart.viewBox.baseVal.width / box.width;
    const [xs, ys] = [chart.dataset.x, chart.dataset.y].map((text) => text.split(" ").map(Number));
    const px = scale((event.clientX - box.left) * unit, xs);
    const py = scale((event.clientY - box.top) * unit, ys);
    const found = shownLines(chart).map((line) => {
      const [x, y] = nearest(points(line).map((point) => point.map(Number)), (point) => Math.abs(point[0] - px));
      return { label: line.dataset.label, x, y };
    });
    if (!found.length) return;
    const axis = chart.dataset.unit;
    const x = nearest(found, (point) => Math.abs(point.x - px)).x;
    const at = axis === "rounds" ? `round ${x}` : `${short(x)} ${axis}`;
    const near = found.sort((a, b) => Math.abs(a.y - py) - Math.abs(b.y - py)).slice(0, 8).sort((a, b) => b.y - a.y);
    tip.replaceChildren(...[at, ...near.map((p) => `${short(p.y)}  ${p.label}`)].map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(event.pageX + 14, room))}px`;
    tip.style.top = `${event.pageY + 16}px`;
    const place = unscale(x, xs);
    cursor.setAttribute("d", `M${place},${ys[1]}V${ys[0]}`);
    chart.append(cursor);
  };
  for (const chart of all("svg.lines")) {
    chart.addEventListener("pointermove", look);
    chart.addEventListener("pointerleave", () => { tip.hidden = true; cursor.remove(); });
  }
})();
