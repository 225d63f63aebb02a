"use strict";
(() => {
  const AXES = { round: "rounds", seconds: "seconds", virtual_seconds: "virtual seconds", megabytes: "megabytes" };
  const DASHES = [[], [8, 4], [2, 4], [10, 3, 2, 3]];
  const COLOURS = 8, MOST = 8; // colours of the style sheet, and runs in a tooltip
  const LONG = 5; // points from which on a curve is long
  const root = document.documentElement;
  const at = (id) => document.getElementById(id);
  const made = (name, words, text) => Object.assign(document.createElement(name), { className: words, textContent: text });
  const written = (page) => JSON.parse(page.getElementById("data").textContent);
  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 5 });

  let data = written(document);
  let x = "round";
  let whole = false; // whether the upright axes have all of every curve
  const hidden = new Set();
  let charts = [];

  // ---- colours -----------------------------------------------------------------------------------------------
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const looks = (i) => `swatch c${i % COLOURS} d${Math.floor(i / COLOURS) % DASHES.length}`;
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");

  function paint(dark) {
    root.dataset.theme = dark ? "dark" : "light";
    at("theme").setAttribute("aria-pressed", String(dark));
    draw();
  }

  // ---- curves ------------------------------------------------------------------------------------------------
  function nearest(values, wantedValue) {
    let low = 0, high = values.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] <= wantedValue) low = middle; else high = middle;
    }
    return Math.abs(values[low] - wantedValue) <= Math.abs(values[high] - wantedValue) ? low : high;
  }

  /* What every visible run that has come to a place on the axis has at its own point nearest to it. */
  function readings(chart, place) {
    const found = [];
    data.runs.forEach((run, i) => {
      const own = run.values[x];
      if (hidden.has(run.name) || !run.values[chart.key]) return;
      if (!(own[0] <= place && place <= own[own.length - 1])) return;
      const k = nearest(own, place);
      const value = run.values[chart.key][k];
      if (value !== null) found.push({ i, name: run.name, value, place: own[k] });
    });
    return found;
  }

  function point(chart, place) {
    const u = chart.plot, tip = chart.tip;
    const found = readings(chart, place);
    tip.replaceChildren(made("strong", "", `${AXES[x]}: ${number(place)}`));
    for (const one of found.slice(0, MOST)) {
      const line = made("div", "", "");
      const beside = one.place === place ? "" : ` (at ${number(one.place)})`;
      line.append(made("span", looks(one.i), ""), `${number(one.value)}${beside} ${one.name}`);
      tip.append(line);
    }
    if (found.length > MOST) tip.append(made("div", "", `and ${found.length - MOST} more: hide some runs`));
    tip.hidden = !found.length;
    const middle = u.over.offsetLeft + u.over.clientWidth / 2;
    const left = u.over.offsetLeft + u.valToPos(place, "x");
    const mean = found.reduce((sum, one) => sum + u.valToPos(one.value, "y"), 0) / found.length;
    const below = mean < u.over.clientHeight / 2; // the points are above it
    tip.style.top = below ? "auto" : "6px";
    tip.style.bottom = below ? `${chart.place.clientHeight - u.over.offsetTop - u.over.clientHeight + 6}px` : "auto";
    tip.style.left = left < middle ? `${left + 14}px` : "auto";
    tip.style.right = left < middle ? "auto" : `${chart.place.clientWidth - left + 14}px`;
    return found;
  }

  function moved(chart) {
    const u = chart.plot;
    const here = chart.place.matches(":hover") || chart.place === document.activeElement;
    if (!here || u.cursor.left < 0 || u.cursor.idx == null) chart.tip.hidden = true;
    else point(chart, u.data[0][u.cursor.idx]);
  }

  function keyed(chart, event) {
    const u = chart.plot, last = u.data[0].length - 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") { chart.tip.hidden = true; return; }
    if (!(event.key in steps) || last < 0) return;
    event.preventDefault();
    chart.k = Math.min(last, Math.max(0, (chart.k ?? -1) + steps[event.key]));
    const place = u.data[0][chart.k];
    u.setCursor({ left: u.valToPos(place, "x"), top: u.over.clientHeight / 2 });
    const found = point(chart, place);
    at("said").textContent =
      `${AXES[x]} ${number(place)}: ` + found.map((one) => `${one.name} ${number(one.value)}`).join("; ");
  }

  /* The numbers beside an axis, with as many decimals as it takes to tell one from the next. */
  function marks(u, splits, axis, space, step) {
    if (splits.some((value) => Math.abs(value) >= 1e9)) {
      return splits.map((value) => value.toLocaleString("en", { notation: value ? "scientific" : "standard" }));
    }
    let decimals = 0, scaled = step;
    while (decimals < 20 && Math.abs(scaled - Math.round(scaled)) > 1e-6 * scaled) scaled = step * 10 ** ++decimals;
    const shown = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    return splits.map((value) => value.toLocaleString("en", shown));
  }

  /* Pixels for the numbers beside the upright axis. */
  const room = (u, texts) => Math.max(58, 22 + 7 * Math.max(...(texts ?? [""]).map((text) => text.length)));

  /* The ends of the upright axis. A steep start, in the first tenth of long curves, leaves the view if that at least
     doubles the room of what follows, until a reader zooms or asks for all of every curve. */
  function upright(chart, low, high) {
    if (low === null) return [null, null];
    if (!whole && !chart.zoomed) {
      const seen = data.runs.filter((run) => !hidden.has(run.name)).flatMap(({ values: { [chart.key]: own = [] } }) =>
        own.slice(own.length < LONG ? 0 : Math.floor(own.length / 10) + 1).filter((value) => value !== null));
      const [least, most] = seen.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
      if (least < most && 2 * (most - least) <= high - low) [low, high] = [least, most];
    }
    return uPlot.rangeNum(low, high, 0.1, true);
  }

  /* The ends of the level axis, and whether a reader has zoomed in. */
  function level(chart, u, low, high) {
    const places = u.data[0];
    chart.zoomed = places.length > 1 && (low > places[0] || high < places[places.length - 1]);
    return [low, high];
  }

  function options(chart, place) {
    const ink = colour("--quiet"), line = colour("--line");
    const lines = { grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const axis = { ...lines, stroke: ink, font: "12px system-ui", values: marks };
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      scales: {
        x: { time: false, range: (u, low, high) => level(chart, u, low, high) },
        y: { range: (u, low, high) => upright(chart, low, high) },
      },
      legend: { show: false },
      cursor: { sync: { key: "runs" }, drag: { x: true, y: false } },
      series: [{}].concat(data.runs.map((run, i) => ({
        label: run.name,
        show: !hidden.has(run.name),
        stroke: colour(`--c${i % COLOURS}`),
        dash: DASHES[Math.floor(i / COLOURS) % DASHES.length],
        width: 2,
        spanGaps: true,
        points: { show: run.values[x].length < 40, size: 5 },
      }))),
      axes: [
        { ...axis, label: AXES[x], labelSize: 22, labelFont: "12px system-ui", size: 34 },
        { ...axis, size: room },
      ],
      hooks: { setCursor: [() => moved(chart)] },
    };
  }

  /* One column of places on the axis, and one of values for each run. */
  function table(key) {
    return uPlot.join(data.runs.map((run) => [run.values[x], run.values[key] ?? run.values[x].map(() => null)]));
  }

  function chartOf(kind) {
    const figure = made("figure", "", ""), title = made("figcaption", "", kind.title);
    const place = made("div", "plot", "");
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.setAttribute("aria-roledescription", "chart");
    place.setAttribute("aria-label", `${kind.title}, against ${AXES[x]}; the arrow keys read its values`);
    figure.append(title, place);
    at("charts").append(figure);
    const chart = { key: kind.key, place, tip: made("div", "tip", "") };
    chart.plot = new uPlot(options(chart, place), table(kind.key), place);
    chart.tip.hidden = true;
    place.append(chart.tip);
    place.addEventListener("keydown", (event) => keyed(chart, event));
    place.addEventListener("focusout", () => { chart.tip.hidden = true; });
    return chart;
  }

  /* Every chart as large as its place; the first ones were drawn before the others took theirs. */
  function fit() {
    for (const { plot, place } of charts) {
      if (place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: place.clientHeight });
    }
  }

  function draw() {
    const focused = charts.findIndex((chart) => chart.place === document.activeElement);
    for (const chart of charts) chart.plot.destroy();
    at("charts").replaceChildren();
    charts = data.runs.length ? data.charts.map(chartOf) : [];
    fit();
    if (focused >= 0 && charts[focused]) charts[focused].place.focus();
  }

  // ---- choices -----------------------------------------------------------------------------------------------
  function choice(kind, name, checked, words) {
    const label = made("label", "", ""), input = made("input", "", "");
    Object.assign(input, { type: kind, name, checked });
    label.append(input, ...words);
    return [label, input];
  }

  const anybody = () => data.runs.some((run) => !hidden.has(run.name));

  function offer() {
    at("every").textContent = anybody() ? "Hide all runs" : "Show all runs";
    at("shown").replaceChildren(at("shown").firstElementChild);
    data.runs.forEach((run, i) => {
      const [label, input] = choice("checkbox", "run", !hidden.has(run.name), [made("span", looks(i), ""), run.name]);
      input.addEventListener("change", () => {
        if (input.checked) hidden.delete(run.name); else hidden.add(run.name);
        at("every").textContent = anybody() ? "Hide all runs" : "Show all runs";
        for (const chart of charts) chart.plot.setSeries(i + 1, { show: input.checked });
      });
      at("shown").append(label);
    });
  }

  for (const [key, words] of Object.entries(AXES)) {
    const [label, input] = choice("radio", "against", key === x, [words]);
    input.addEventListener("change", () => { x = key; draw(); });
    at("against").append(label);
  }
  at("every").addEventListener("click", () => {
    const hide = anybody();
    hidden.clear();
    if (hide) for (const run of data.runs) hidden.add(run.name);
    offer();
    draw();
  });
  at("whole").addEventListener("click", () => {
    whole = !whole;
    at("whole").textContent = whole ? "Leave out steep starts" : "Show all of every curve";
    draw();
  });
  at("theme").addEventListener("click", () => paint(root.dataset.theme !== "dark"));
  wanted.addEventListener("change", () => paint(wanted.matches));
  new ResizeObserver(fit).observe(at("charts"));

  // ---- a run that goes on ------------------------------------------------------------------------------------
  const shape = () => JSON.stringify([data.runs.map((run) => run.name), data.charts]);

  function renew(page) {
    for (const fresh of page.querySelectorAll("[data-part]")) {
      const old = document.querySelector(`[data-part="${fresh.dataset.part}"]`);
      if (old.innerHTML === fresh.innerHTML) continue;
      const open = new Set([...old.querySelectorAll("details[open]")].map((one) => one.dataset.run));
      old.innerHTML = fresh.innerHTML;
      for (const one of old.querySelectorAll("details")) one.open ||= open.has(one.dataset.run);
    }
    const now = JSON.stringify(written(page));
    if (now === JSON.stringify(data)) return;
    const kept = shape();
    data = JSON.parse(now);
    if (kept !== shape()) { offer(); draw(); return; }
    for (const { key, plot, zoomed } of charts) {
      plot.setData(table(key), !zoomed);
      if (zoomed) plot.redraw();
    }
  }

  async function again() {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.ok) renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
      setTimeout(again, data.renew * 1000);
    } catch {
      document.querySelector('[data-part="about"]').textContent = "This page is not renewed any more: dpzv watch has ended.";
    }
  }

  offer();
  paint(wanted.matches);
  if (data.renew) setTimeout(again, data.renew * 1000);
})();
