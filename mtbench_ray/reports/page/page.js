"use strict";
{
  const byId = (id) => document.getElementById(id);
  const index = JSON.parse(byId("index").textContent);
  const { models, graders, tables, items, pairs, states, plots } = index;
  const wide = window.matchMedia("(min-width: 60rem)");

  // ---- small helpers -------------------------------------------------------------------------

  /** An element. `props` are attributes, `on...` listeners, `class` and `text`. */
  function make(tag, props = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name.startsWith("--")) element.style.setProperty(name, value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("page", { createHTML: (text) => text })
    : { createHTML: (text) => text };

  /** Rendered text. It was sanitised when the page was made; this is the only innerHTML. */
  function rich(text, name = "text") {
    const template = document.createElement("template");
    template.innerHTML = policy.createHTML(text);
    const box = make("div", { class: name });
    box.append(template.content);
    return box;
  }

  /** Rounded as the tables are: of two numbers that are as near, to the even one. */
  function fixed(value, digits) {
    const scaled = value * 10 ** digits;
    const halfway = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(scaled % 1) === 0.5;
    return halfway ? (2 * Math.round(scaled / 2) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
  }

  const number = (value, digits = 2) =>
    value === null || value === undefined ? "n/a"
      : Number.isInteger(value) ? String(value) : fixed(value, digits);
  const mean = (values) =>
    values && values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

  /** Where a value lies on its grader's scale, 0 to 1. */
  function place(grader, value) {
    const { low, high } = graders[grader];
    return high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
  }

  /** Soon, when nobody waits for the browser. */
  const whenIdle = (work) =>
    window.requestIdleCallback ? requestIdleCallback(() => work(), { timeout: 400 }) : setTimeout(work, 30);

  function chip(grader, value, text, title) {
    return make("span", {
      class: value === null || value === undefined ? "chip none" : "chip",
      "--v": value === null || value === undefined ? null : place(grader, value).toFixed(3),
      text: text ?? number(value), title,
    });
  }

  /** A bar from low to high with a dot at the mean. */
  function bar(grader, low, high, middle) {
    const track = make("span", { class: "bar", "aria-hidden": "true" });
    if (low !== null && high !== null) {
      const from = place(grader, low), to = place(grader, high);
      track.append(make("i", { "--from": from, "--to": to }));
    }
    if (middle !== null) track.append(make("b", { "--at": place(grader, middle) }));
    return track;
  }

  // ---- texts, unpacked when they are looked at -----------------------------------------------

  const kept = new Map();
  const KEPT = 12;

  async function unpack(name) {
    const coded = atob(byId(name).textContent);
    const bytes = new Uint8Array(coded.length);
    for (let at = 0; at < coded.length; at += 1) bytes[at] = coded.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function textsOf(item) {
    const found = kept.get(item) ?? unpack(`item-${item}`);
    kept.delete(item);
    kept.set(item, found);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    return found;
  }

  const pairOf = new Map();
  const pairsOf = items.map(() => []);
  pairs.item.forEach((item, at) => {
    pairOf.set(item * models.length + pairs.model[at], at);
    pairsOf[item].push(at);
  });
  const pairAt = (item, model) => pairOf.get(item * models.length + model);

  /** Lower-case texts for the search: of each question, and of each pair. */
  const words = { items: [], pairs: [], ready: false, started: null };

  function readAll() {
    words.started ??= (async () => {
      for (let item = 0; item < items.length; item += 1) {
        const texts = await unpack(`item-${item}`);
        const said = [items[item][0], items[item][2], ...texts.turns];
        for (const one of texts.references) said.push(one.c);
        for (const one of texts.context) said.push(one[1]);
        words.items[item] = said.join("\n").toLowerCase();
        for (const at of pairsOf[item]) {
          const mine = [];
          for (const [, turns] of texts.answers[pairs.model[at]] ?? []) {
            for (const turn of turns) mine.push(turn.c ?? "", turn.r ?? "");
          }
          for (const verdict of texts.verdicts[pairs.model[at]] ?? []) {
            const judgment = texts.judgments[verdict.j];
            if (judgment) mine.push(judgment.c ?? "", judgment.r ?? "");
          }
          words.pairs[at] = mine.join("\n").toLowerCase();
        }
      }
      words.ready = true;
    })();
    return words.started;
  }

  // ---- the state, and the address that says it -----------------------------------------------

  const VIEWS = ["scores", "plots", "answers", "pair"];
  const ORDERS = ["", "differ", "lowest", "highest"];
  const names = uniqueNames();
  const firstView = tables.length ? "scores" : "answers";
  const rankOf = graders.map((_, grader) => ranks(grader));
  let state = read();

  function browsing(view) {
    return view === "answers" || view === "pair";
  }

  function uniqueNames() {
    const count = (values) => values.reduce((all, one) => all.set(one, (all.get(one) ?? 0) + 1), new Map());
    const ids = items.map((item) => item[0]);
    const many = count(ids);
    const long = items.map((item) => (many.get(item[0]) > 1 ? `${item[1]}/${item[0]}` : item[0]));
    const still = count(long);
    return long.map((name, at) => (still.get(name) > 1 ? `${name}~${at}` : name));
  }

  /** Models by the score table of a grader, the best first. */
  function ranks(grader) {
    const order = new Map();
    for (const table of tables.filter((one) => one.grader === grader)) {
      for (const [model] of table.rows) {
        if (model !== null && !order.has(model)) order.set(model, order.size);
      }
    }
    return models.map((_, model) => order.get(model) ?? models.length + model);
  }

  function read() {
    const query = new URLSearchParams(location.hash.slice(1));
    const known = (list, name) => Math.max(0, list.indexOf(query.get(name)));
    const grader = Math.max(0, graders.findIndex((one) => one.name === query.get("judge")));
    const best = [...models.keys()].sort((one, two) => (rankOf[grader]?.[one] ?? one) - (rankOf[grader]?.[two] ?? two));
    const side = (name, otherwise) =>
      models.includes(query.get(name)) ? models.indexOf(query.get(name)) : otherwise;
    return {
      view: VIEWS.includes(query.get("view")) ? query.get("view") : firstView,
      item: known(names, "q"),
      at: models.indexOf(query.get("at")),
      grader,
      category: query.get("category") ?? "",
      status: query.get("status") ?? "",
      models: new Set(query.getAll("model").map((name) => models.indexOf(name)).filter((one) => one >= 0)),
      low: query.get("min") ?? "",
      high: query.get("max") ?? "",
      order: ORDERS.includes(query.get("order")) ? query.get("order") : "",
      find: query.get("find") ?? "",
      a: side("a", best[0] ?? 0),
      b: side("b", best[1] ?? 0),
    };
  }

  function addressOf(changes = {}) {
    const now = { ...state, ...changes };
    const query = new URLSearchParams();
    const say = (name, value) => { if (value !== "" && value !== undefined) query.append(name, value); };
    say("view", now.view === firstView ? "" : now.view);
    if (browsing(now.view)) {
      say("q", names[now.item] ?? "");
      say("at", now.at >= 0 ? models[now.at] : "");
    }
    say("judge", now.grader > 0 ? graders[now.grader].name : "");
    say("category", now.category);
    say("status", now.status);
    for (const model of now.models) say("model", models[model]);
    say("min", now.low);
    say("max", now.high);
    say("order", now.order);
    say("find", now.find);
    if (now.view === "pair") {
      say("a", models[now.a]);
      say("b", models[now.b]);
    }
    return `#${query}`;
  }

  /** Change the state and show it; `step` makes a step that the Back button undoes. */
  function go(changes, step = false) {
    state = { ...state, ...changes };
    history[step ? "pushState" : "replaceState"](null, "", addressOf());
    show(!("item" in changes) && !("at" in changes));
  }

  // ---- filters -------------------------------------------------------------------------------

  function terms() {
    const found = state.find.toLowerCase().match(/"[^"]+"|[^\s"]+/g) ?? [];
    return found.map((term) => term.replaceAll('"', "")).filter(Boolean);
  }

  /** Questions that fit, each with the pairs that do, in the chosen order. */
  function filtered() {
    const grader = graders[state.grader];
    const two = state.view === "pair";
    const low = state.low === "" ? -Infinity : Number(state.low);
    const high = state.high === "" ? Infinity : Number(state.high);
    const ranged = state.low !== "" || state.high !== "";
    const bit = state.status === "" ? 0 : 1 << states.indexOf(state.status);
    const wanted = words.ready ? terms() : [];
    const groups = new Map();
    let count = 0;
    for (let at = 0; at < pairs.item.length; at += 1) {
      const item = pairs.item[at], model = pairs.model[at];
      if (two ? model !== state.a && model !== state.b : state.models.size && !state.models.has(model)) continue;
      if (state.category && items[item][2] !== state.category) continue;
      if (state.status && !((pairs.states[at] | (grader ? grader.states[at] : 0)) & bit)) continue;
      const values = grader?.values[at] ?? null;
      if (ranged && !(values && values.some((value) => value >= low && value <= high))) continue;
      if (wanted.length && !wanted.every((term) => words.items[item].includes(term) || words.pairs[at].includes(term))) continue;
      let group = groups.get(item);
      if (!group) groups.set(item, group = { item, pairs: [], low: null, high: null, sum: 0, scored: 0 });
      group.pairs.push(at);
      count += 1;
      const middle = mean(values);
      if (middle !== null) {
        group.low = group.low === null ? middle : Math.min(group.low, middle);
        group.high = group.high === null ? middle : Math.max(group.high, middle);
        group.sum += middle;
        group.scored += 1;
      }
    }
    const found = [...groups.values()];
    for (const group of found) {
      group.mean = group.scored ? group.sum / group.scored : null;
      group.spread = group.scored > 1 ? group.high - group.low : -1;
      if (two) {
        const [one, other] = [state.a, state.b].map((model) => mean(grader?.values[pairAt(group.item, model)]));
        group.a = one;
        group.b = other;
        group.spread = one === null || other === null ? -1 : Math.abs(one - other);
      }
    }
    const last = (value, sign) => (value === null ? Infinity : sign * value);
    const sorts = {
      differ: (one, other) => other.spread - one.spread,
      lowest: (one, other) => last(one.mean, 1) - last(other.mean, 1),
      highest: (one, other) => last(one.mean, -1) - last(other.mean, -1),
    };
    if (sorts[state.order]) found.sort((one, other) => sorts[state.order](one, other) || one.item - other.item);
    return { groups: found, count };
  }

  let now = { groups: [], count: 0 };

  // ---- what is shown -------------------------------------------------------------------------

  /** `jump`: where the question does not fit the filters, the first one that does is shown. */
  function show(jump = false) {
    document.body.dataset.view = state.view;
    for (const button of byId("views").children) {
      button.setAttribute("aria-current", button.dataset.view === state.view ? "page" : "false");
    }
    byId("scores").hidden = state.view !== "scores";
    byId("plots").hidden = state.view !== "plots";
    byId("browse").hidden = !browsing(state.view);
    if (state.view === "scores") showScores();
    else if (state.view === "plots") showPlots();
    else showBrowse(jump);
  }

  let scoresShown = false;

  function showScores() {
    if (scoresShown) return;
    scoresShown = true;
    byId("scores").replaceChildren(...tables.map(scoreTable));
    if (!tables.length) byId("scores").append(make("p", { class: "empty", text: "Nothing here is judged yet." }));
  }

  let plotsShown = false;

  function showPlots() {
    if (plotsShown) return;
    plotsShown = true;
    let group = null, box = null;
    for (const [at, [heading, title]] of plots.entries()) {
      if (heading !== group) byId("plots").append(make("h2", { text: group = heading }), box = make("div"));
      const holder = make("figure", { class: "plot", tabindex: "0", role: "group", "aria-label": title });
      box.append(holder);
      unpack(`plot-${at}`).then((drawn) => holder.append(rich(drawn, "drawn")));
    }
    if (!plots.length) byId("plots").append(make("p", { class: "empty", text: "There are no plots: matplotlib was not installed, or nothing is scored." }));
  }

  function scoreTable(table) {
    const body = make("tbody");
    let sorted = { column: 0, down: true };
    const heads = [];
    const arrange = () => {
      const key = (row) => (sorted.column < 0 ? row[1] : row[2][sorted.column]?.[0] ?? null);
      const rows = [...table.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === null || b === null) return (a === null) - (b === null);
        const order = typeof a === "string" ? a.localeCompare(b) : a - b;
        return sorted.down ? -order : order;
      });
      body.replaceChildren(...rows.map((row) => scoreRow(table, row)));
      heads.forEach((head, at) => head.setAttribute("aria-sort",
        at - 1 !== sorted.column ? "none" : sorted.down ? "descending" : "ascending"));
    };
    const head = make("tr");
    for (const [at, name] of [[-1, "model"], ...table.columns.map((column, place) => [place, column[0]])]) {
      const cell = make("th", { scope: "col" }, make("button", {
        type: "button", text: name,
        onclick: () => {
          sorted = { column: at, down: sorted.column === at ? !sorted.down : at >= 0 };
          arrange();
        },
      }));
      heads.push(cell);
      head.append(cell);
    }
    arrange();
    return make("section", { class: "scores" },
      make("h2", { text: graders[table.grader].name }),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Scores, ${graders[table.grader].name}` },
        make("table", {}, make("thead", {}, head), body)));
  }

  function scoreRow(table, [model, name, cells]) {
    const link = (category) => addressOf({
      view: "answers", grader: table.grader, models: new Set([model]), category, at: -1, status: "", low: "", high: "", find: "",
    });
    const title = model === null ? make("span", { text: name }) : make("a", { href: link(""), text: name });
    return make("tr", {}, make("th", { scope: "row" }, title), ...cells.map((cell, at) => {
      if (!cell) return make("td", { class: "none", text: "–" });
      const [middle, low, high, scored, planned, why] = cell;
      const [, category, digits] = table.columns[at];
      const said = middle === null ? "–" : fixed(middle, digits);
      const heated = middle !== null && digits > 0;
      const value = category && model !== null
        ? make("a", { href: link(category), text: said }) : make("span", { text: said });
      const between = low === null || high === null ? "" : `${fixed(low, Math.max(2, digits))} to ${fixed(high, Math.max(2, digits))}`;
      const box = make("td", {
        class: middle === null ? "none" : heated ? "heat" : null,
        "--v": heated ? place(table.grader, middle).toFixed(3) : null,
        title: `${between ? `95% interval ${between}, ` : why ? `no interval: ${why}, ` : ""}${scored} of ${planned} scored`,
      }, ...(at === 0 ? [make("small", { text: between || "no interval" }), " "] : []), value);
      if (at === 0) box.append(bar(table.grader, low, high, middle));
      if (scored < planned) box.append(make("small", { class: "gap", text: `${scored}/${planned}` }));
      return box;
    }));
  }

  let shownKey = "";

  function showBrowse(jump) {
    syncFilters();
    const pending = state.find && !words.ready;
    if (pending) readAll().then(() => show(jump));
    now = filtered();
    if (jump && !pending && now.groups.length && !now.groups.some((one) => one.item === state.item)) {
      state = { ...state, item: now.groups[0].item, at: -1 };
      history.replaceState(null, "", addressOf());
    }
    byId("found").textContent = pending ? "Reading all texts …"
      : `${plural(now.groups.length, "question")}, ${plural(now.count, "answer")}`;
    byId("summary").textContent = `${now.groups.length} of ${items.length}`;
    const rest = addressOf({ item: -1, at: -1 }).slice(1);
    byId("list").replaceChildren(...now.groups.map((group) => listEntry(group, rest)));
    if (!now.groups.length) {
      byId("list").append(make("li", { class: "empty", text: "Nothing fits these filters." }));
    }
    byId("list").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    const group = now.groups.find((one) => one.item === state.item);
    const shown = state.view === "pair" ? [state.a, state.b] : (group?.pairs ?? []).map((at) => pairs.model[at]);
    const key = JSON.stringify([state.view, state.item, state.grader, shown]);
    if (key !== shownKey) {
      shownKey = key;
      showItem(group, shown);
    } else {
      reveal(byId("main"));
      highlight();
      toCard();
    }
  }

  function listEntry(group, rest) {
    const [id, , category, text] = items[group.item];
    const current = group.item === state.item;
    const line = make("a", {
      href: `#q=${encodeURIComponent(names[group.item])}&${rest}`, "aria-current": current ? "true" : null,
      onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        open(group.item);
      },
    }, make("span", { class: "id", text: id }), make("span", { class: "what", text: text || "(no text of the question here)" }),
    make("span", { class: "kind", text: category }));
    if (graders.length) {
      const [low, high] = state.view === "pair" ? [group.a, group.b].every((one) => one !== null)
        ? [Math.min(group.a, group.b), Math.max(group.a, group.b)] : [null, null] : [group.low, group.high];
      const said = state.view !== "pair" ? number(group.mean, 1)
        : group.spread < 0 ? "n/a" : group.spread === 0 ? "0" : `${group.a >= group.b ? "+" : "−"}${number(group.spread, 1)}`;
      line.append(bar(state.grader, low, high, state.view === "pair" ? group.a : group.mean),
        make("span", { class: "value", text: said }));
    }
    return make("li", {}, line);
  }

  function open(item, step = true) {
    if (!wide.matches) byId("side").open = false;
    go({ item, at: -1 }, step);
    window.scrollTo({ top: 0 });
  }

  function move(by) {
    if (!now.groups.length) return;
    const at = now.groups.findIndex((group) => group.item === state.item);
    const next = at < 0 ? 0 : Math.min(now.groups.length - 1, Math.max(0, at + by));
    if (next !== at) open(now.groups[next].item, false);
  }

  async function showItem(group, shown) {
    const mine = shownKey;
    const main = byId("main");
    if (!items.length) return;
    const texts = await textsOf(state.item);
    if (mine !== shownKey) return;
    const [id, benchmark, category] = items[state.item];
    const place = now.groups.findIndex((one) => one.item === state.item);
    const head = make("header", { class: "item" },
      make("div", { class: "line" },
        make("h2", { text: `Question ${id}` }),
        make("span", { class: "tag", text: category }),
        make("span", { class: "tag quiet", text: benchmark }),
        make("span", { class: "steps" },
          make("button", { type: "button", title: "Previous question (k)", "aria-label": "Previous question", text: "‹", onclick: () => move(-1) }),
          make("span", { text: place < 0 ? "not in the list" : `${place + 1} of ${now.groups.length}` }),
          make("button", { type: "button", title: "Next question (j)", "aria-label": "Next question", text: "›", onclick: () => move(1) }))));
    for (const [role, said] of texts.context) head.append(make("div", { class: "ask" }, make("b", { text: role }), make("p", { text: said })));
    texts.turns.forEach((turn, at) => head.append(make("div", { class: "ask" },
      make("b", { text: texts.turns.length > 1 ? `Turn ${at + 1}` : "Question" }), make("p", { text: turn }))));
    if (!texts.turns.length) head.append(make("p", { class: "empty", text: "The workspace holds no text of this question." }));
    if (texts.references.some((one) => one.c)) {
      head.append(make("details", { class: "reference" }, make("summary", { text: "Reference answer" }),
        ...texts.references.map((one, at) => make("div", { class: "ask" },
          make("b", { text: `Turn ${at + 1}` }), rich(one.h ?? "")))));
    }
    if (state.view === "pair") {
      main.replaceChildren(head, pairView(texts));
    } else {
      const { overview, list } = cards(texts, shown);
      main.replaceChildren(head, ...(overview ? [overview] : []));
      if (!group) main.append(make("p", { class: "empty", text: "No answer to this question fits the filters." }));
      // The first screens now, the others in steps that leave room for the next key.
      const first = Math.max(FIRST, list.indexOf(state.at) + 1);
      main.append(...list.slice(0, first).map((model) => card(texts, model)));
      const more = (from) => {
        if (mine !== shownKey || from >= list.length) return;
        const next = list.slice(from, from + FIRST).map((model) => card(texts, model));
        main.append(...next);
        for (const one of next) reveal(one);
        highlight();
        whenIdle(() => more(from + FIRST));
      };
      whenIdle(() => more(first));
    }
    reveal(main);
    highlight();
    toCard();
  }

  const FIRST = 3;
  const REVEALED = 8;

  /** Unfold the judgments in which the search found something. */
  function reveal(part) {
    const wanted = terms();
    if (!wanted.length) return;
    let left = REVEALED;
    for (const box of part.querySelectorAll(".verdict:not([open])")) {
      if (!left || !box.said || !wanted.some((term) => box.said.includes(term))) continue;
      unfold(box, true);
      left -= 1;
    }
  }

  function ordered(shown) {
    const rank = rankOf[state.grader];
    return rank ? [...shown].sort((one, other) => rank[one] - rank[other]) : shown;
  }

  function cards(texts, shown) {
    const list = ordered(shown);
    const overview = make("nav", { class: "overview", "aria-label": "Models" }, ...list.map((model) => {
      const value = mean(graders[state.grader]?.values[pairAt(state.item, model)]);
      return make("a", { href: addressOf({ at: model }), onclick: (event) => {
        event.preventDefault();
        go({ at: model });
      } }, make("span", { text: models[model] }), graders.length ? chip(state.grader, value) : null);
    }));
    return { overview: list.length > 1 ? overview : null, list };
  }

  /** The card of a model; of the shown question each is made once, and keeps what was unfolded. */
  function card(texts, model) {
    const key = `${state.item}/${state.grader}`;
    if (made.key !== key) made = { key, cards: new Map() };
    if (!made.cards.has(model)) made.cards.set(model, newCard(texts, model));
    return made.cards.get(model);
  }

  let made = { key: "", cards: new Map() };

  function newCard(texts, model) {
    const answers = texts.answers[model] ?? [];
    const samples = answers.length ? answers : [[0, []]];
    const head = make("header", {},
      make("h3", {}, make("a", { href: addressOf({ at: model }), title: "Link to this answer", text: models[model] })),
      valueChips(texts, model),
      make("button", { type: "button", class: "quiet", text: "Side by side", title: "Compare this model with another (c)",
        onclick: () => go({ view: "pair", a: model, b: model === state.a ? state.b : state.a }, true) }));
    const box = make("article", { class: "card", "data-model": model, tabindex: "-1", "aria-label": models[model] }, head);
    for (const [sample, turns] of samples) {
      const count = turnNumbers(texts, [model]);
      for (const turn of count) box.append(turnBlock(texts, model, sample, turns, turn, samples.length > 1, count.length > 1));
    }
    return box;
  }

  function turnNumbers(texts, shown) {
    const found = new Set(texts.turns.map((_, at) => at + 1));
    for (const model of shown) {
      for (const [, turns] of texts.answers[model] ?? []) turns.forEach((turn) => found.add(turn.n));
      for (const verdict of texts.verdicts[model] ?? []) found.add(verdict.t);
    }
    return [...found].sort((one, other) => one - other);
  }

  function valueChips(texts, model) {
    const mine = (texts.verdicts[model] ?? []).filter((one) => one.g === state.grader);
    return make("span", { class: "chips" }, ...mine.slice(0, 12).map((one) =>
      chip(one.g, one.v ?? null, one.v === undefined ? one.w : number(one.v), about(one))),
    mine.length > 12 ? make("span", { class: "dim", text: `+${mine.length - 12}` }) : null);
  }

  function about(verdict) {
    const said = [`turn ${verdict.t}`];
    if (verdict.c) said.push(verdict.c);
    if (verdict.o !== undefined) said.push(`${verdict.f === false ? "shown second" : verdict.f ? "shown first" : ""} against ${models[verdict.o]}`.trim());
    if (verdict.s) said.push(`sample ${verdict.s + 1}`);
    if (verdict.n) said.push(`repeat ${verdict.n + 1}`);
    return said.join(", ");
  }

  function turnBlock(texts, model, sample, turns, number_, several, titled) {
    const turn = turns.find((one) => one.n === number_);
    const title = [titled ? `Turn ${number_}` : "", several ? `sample ${sample + 1}` : ""].filter(Boolean).join(", ");
    const box = make("section", { class: "turn" });
    const line = make("div", { class: "line" }, make("h4", { text: title || "Answer" }));
    if (turn && turn.s !== "ok") line.append(make("span", { class: "tag bad", text: turn.s }));
    if (turn) {
      const facts = [turn.k ? `${turn.k} tokens` : "", turn.l ? `${turn.l} s` : "", turn.f && turn.f !== "stop" ? turn.f : ""];
      line.append(make("span", { class: "dim", text: facts.filter(Boolean).join(" · ") }));
      if (turn.c) line.append(sourceButton(box, turn));
    }
    box.append(line);
    if (!turn) box.append(make("p", { class: "empty", text: "The workspace holds no answer here." }));
    else {
      if (turn.r) box.append(folded("Reasoning", "reasoning", () => [make("pre", { text: turn.r })], `${turn.r.length.toLocaleString("en")} characters`));
      if (turn.e) box.append(make("p", { class: "error", text: turn.e }));
      box.append(answerBody(turn, false));
    }
    const mine = (texts.verdicts[model] ?? []).filter((one) => one.t === number_ && (one.s ?? 0) === sample);
    const own = mine.filter((one) => one.g === state.grader), others = mine.filter((one) => one.g !== state.grader);
    box.append(...own.map((one) => verdictBlock(texts, one)));
    if (others.length) {
      box.append(folded("Other judges", "others", () => others.map((one) => verdictBlock(texts, one)), plural(others.length, "judgment")));
    }
    return box;
  }

  const LONG = 2600;

  function answerBody(turn, source) {
    if (!turn.c) return make("p", { class: "empty", text: "(empty)" });
    const body = source ? make("div", { class: "text" }, make("pre", { class: "source", text: turn.c })) : rich(turn.h ?? "");
    const holder = make("div", { class: "answer" }, body);
    if (turn.c.length > LONG && state.view !== "pair") {
      holder.classList.add("cut");
      holder.append(make("button", { type: "button", class: "more", text: `Show all ${turn.c.length.toLocaleString("en")} characters`,
        onclick: (event) => {
          holder.classList.remove("cut");
          event.currentTarget.remove();
        } }));
    }
    return holder;
  }

  function sourceButton(box, turn) {
    return make("button", { type: "button", class: "quiet", "aria-pressed": "false", text: "Source", title: "The text as the model wrote it",
      onclick: (event) => {
        const pressed = event.currentTarget.getAttribute("aria-pressed") !== "true";
        event.currentTarget.setAttribute("aria-pressed", pressed);
        box.querySelector(":scope > .answer").replaceWith(answerBody(turn, pressed));
        highlight();
      } });
  }

  /** A folded part that is filled when it is first opened. */
  function folded(title, name, fill, note = "", head = null) {
    const box = make("details", { class: name }, head ?? make("summary", {}, title, " ", make("span", { class: "dim", text: note })));
    box.fill = () => {
      if (!fill) return;
      box.append(...fill());
      fill = null;
    };
    box.addEventListener("toggle", () => {
      if (!box.open) return;
      box.fill();
      highlight();
    });
    return box;
  }

  function unfold(box, open) {
    if (open) box.fill?.();
    box.open = open;
  }

  function verdictBlock(texts, verdict) {
    const judgment = texts.judgments[verdict.j];
    const shown = verdict.v === undefined ? chip(verdict.g, null, verdict.w || "no value") : chip(verdict.g, verdict.v);
    const label = verdict.l && verdict.l !== String(verdict.v) ? `said ${verdict.l}` : "";
    const head = make("summary", {}, shown, make("span", { class: "who", text: graders[verdict.g].name }),
      make("span", { class: "dim", text: [about(verdict).replace(/^turn \d+(, )?/, ""), label].filter(Boolean).join(", ") }));
    const box = folded("", "verdict", () => {
      if (!judgment) return [make("p", { class: "empty", text: "The workspace holds no judgment here." })];
      const inside = [];
      if (judgment.e) inside.push(make("p", { class: "error", text: judgment.e }));
      inside.push(judgment.c ? rich(judgment.h ?? "") : make("p", { class: "empty", text: "The workspace holds no text of this judgment." }));
      if (judgment.r) inside.push(folded("Judge's reasoning", "reasoning", () => [make("pre", { text: judgment.r })]));
      if (judgment.p) inside.push(folded("Judge prompt", "prompt", () => [make("pre", { text: judgment.p })], judgment.m ?? ""));
      const facts = [judgment.b, judgment.k ? `${judgment.k} tokens` : "", judgment.l ? `${judgment.l} s` : ""];
      inside.push(make("p", { class: "dim", text: facts.filter(Boolean).join(" · ") }));
      return inside;
    }, "", head);
    box.said = judgment?.c?.toLowerCase();
    return box;
  }

  function pairView(texts) {
    const side = (name, model) => {
      const select = make("select", { "aria-label": `Model ${name.toUpperCase()}`, id: `side-${name}`,
        onchange: (event) => go({ [name]: Number(event.currentTarget.value) }, true) },
      ...ordered([...models.keys()]).map((one) => make("option", { value: one, text: models[one], selected: one === model })));
      return make("div", { class: "pair-head" }, select, valueChips(texts, model));
    };
    const grid = make("div", { class: "pair" },
      make("div", { class: "pair-row heads" }, side("a", state.a),
        make("button", { type: "button", class: "quiet swap", text: "⇄", title: "Swap (x)", "aria-label": "Swap",
          onclick: () => go({ a: state.b, b: state.a }) }),
        side("b", state.b)));
    const sides = [state.a, state.b];
    const samples = sides.map((model) => texts.answers[model] ?? [[0, []]]);
    const most = Math.max(...samples.map((one) => one.length));
    const count = turnNumbers(texts, sides);
    for (let at = 0; at < most; at += 1) {
      for (const turn of count) {
        grid.append(make("div", { class: "pair-row" }, ...sides.map((model, which) => {
          const found = samples[which][at];
          const block = found ? turnBlock(texts, model, found[0], found[1], turn, most > 1, count.length > 1)
            : make("section", { class: "turn" }, make("p", { class: "empty", text: "No such sample." }));
          block.dataset.name = models[model];
          return block;
        })));
      }
    }
    return grid;
  }

  function toCard() {
    if (state.at < 0 || state.view !== "answers") return;
    const found = byId("main").querySelector(`[data-model="${state.at}"]`);
    for (const one of byId("main").querySelectorAll(".card.at")) one.classList.remove("at");
    if (!found) return;
    found.classList.add("at");
    found.scrollIntoView({ block: "start" });
    if (!document.activeElement || document.activeElement === document.body || byId("main").contains(document.activeElement)) {
      found.focus({ preventScroll: true });
    }
  }

  const MARKS = 500;

  let marking = 0;

  /** Mark what the search found, without touching the texts; soon, and once for many calls. */
  function highlight() {
    clearTimeout(marking);
    if (window.CSS?.highlights) marking = setTimeout(mark, 60);
  }

  function mark() {
    CSS.highlights.delete("found");
    const wanted = terms();
    if (!wanted.length) return;
    const ranges = [];
    const walker = document.createTreeWalker(byId("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < MARKS; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (const term of wanted) {
        for (let at = text.indexOf(term); at >= 0 && ranges.length < MARKS; at = text.indexOf(term, at + term.length)) {
          const range = document.createRange();
          range.setStart(node, at);
          range.setEnd(node, at + term.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }

  // ---- controls ------------------------------------------------------------------------------

  function fillFilters() {
    const option = (value, text) => make("option", { value, text });
    byId("grader").replaceChildren(...graders.map((grader, at) => option(at, grader.name)));
    byId("grader-field").hidden = !graders.length;
    const categories = [...new Set(items.map((item) => item[2]))].filter(Boolean);
    byId("category").replaceChildren(option("", "all"), ...categories.map((name) => option(name, name)));
    byId("status").replaceChildren(option("", "any"), ...[...states].sort().map((name) => option(name, name)));
    byId("models").replaceChildren(...ordered([...models.keys()]).map((model) =>
      make("label", { "data-name": models[model].toLowerCase() },
        make("input", { type: "checkbox", value: model, onchange: (event) => {
          const chosen = new Set(state.models);
          if (event.currentTarget.checked) chosen.add(model);
          else chosen.delete(model);
          go({ models: chosen });
        } }), models[model])));
  }

  function syncFilters() {
    const set = (id, value) => { if (byId(id).value !== String(value)) byId(id).value = value; };
    set("grader", state.grader);
    set("category", state.category);
    set("status", state.status);
    set("low", state.low);
    set("high", state.high);
    set("order", state.order);
    set("find", state.find);
    byId("models-field").hidden = state.view === "pair";
    byId("models-count").textContent = state.models.size ? `${state.models.size} of ${models.length}` : `all ${models.length}`;
    for (const box of byId("models").querySelectorAll("input")) box.checked = state.models.has(Number(box.value));
  }

  function listen() {
    for (const button of byId("views").children) {
      button.addEventListener("click", () => go({ view: button.dataset.view }, true));
    }
    const on = (id, name, kind = "input") => byId(id).addEventListener(kind, (event) => go({ [name]: event.currentTarget.value }));
    on("category", "category");
    on("status", "status");
    on("low", "low");
    on("high", "high");
    on("order", "order");
    on("find", "find");
    byId("find").addEventListener("focus", () => readAll());
    byId("grader").addEventListener("input", (event) => go({ grader: Number(event.currentTarget.value) }));
    byId("models-find").addEventListener("input", (event) => {
      const wanted = event.currentTarget.value.toLowerCase();
      for (const label of byId("models").children) label.hidden = !label.dataset.name.includes(wanted);
    });
    byId("reset").addEventListener("click", () =>
      go({ category: "", status: "", models: new Set(), low: "", high: "", order: "", find: "" }));
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("skip").addEventListener("click", (event) => {
      event.preventDefault();
      const inside = { scores: "#scores .scroll", plots: "#plots .plot" }[state.view] ?? "#main";
      document.querySelector(inside)?.focus();
    });
    byId("keys").addEventListener("click", () => byId("help").showModal());
    window.addEventListener("hashchange", () => {
      state = read();
      show();
    });
    document.addEventListener("keydown", key);
    const fold = () => { byId("side").open = wide.matches; };
    wide.addEventListener("change", fold);
    fold();
    document.addEventListener("click", (event) => {
      if (!byId("models-field").contains(event.target)) byId("models-field").open = false;
    });
  }

  function step(by) {
    const shown = [...byId("main").querySelectorAll(".card")].map((card) => Number(card.dataset.model));
    if (!shown.length) return;
    const at = shown.indexOf(state.at);
    go({ at: shown[at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + by))] });
  }

  function toggleAll(selector) {
    const found = [...byId("main").querySelectorAll(selector)];
    const open = found.some((one) => !one.open);
    for (const one of found) unfold(one, open);
    highlight();
  }

  const KEYS = {
    "/": ["search", () => {
      if (!browsing(state.view)) go({ view: "answers" }, true);
      byId("side").open = true;
      byId("find").focus();
      byId("find").select();
    }],
    j: ["next question", () => move(1)],
    k: ["previous question", () => move(-1)],
    n: ["next answer", () => step(1)],
    p: ["previous answer", () => step(-1)],
    s: ["scores", () => go({ view: "scores" }, true)],
    g: ["plots", () => go({ view: "plots" }, true)],
    a: ["answers", () => go({ view: "answers" }, true)],
    c: ["side by side", () => go({ view: "pair", ...(state.at >= 0 && state.at !== state.b ? { a: state.at } : {}) }, true)],
    x: ["swap the sides", () => state.view === "pair" && go({ a: state.b, b: state.a })],
    d: ["the questions that differ most first", () => go({ order: state.order === "differ" ? "" : "differ" })],
    v: ["open or fold all judgments", () => toggleAll(".verdict")],
    r: ["open or fold all reasoning", () => toggleAll("details.reasoning")],
    t: ["light, dark or automatic theme", () => nextTheme()],
    "?": ["this list", () => byId("help").showModal()],
  };

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.target instanceof Element && event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const found = KEYS[event.key];
    if (!found || (!browsing(state.view) && "jknpxdvr".includes(event.key))) return;
    event.preventDefault();
    found[1]();
  }

  const THEMES = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };
  let theme = "auto";

  function setTheme(name) {
    theme = name in THEMES ? name : "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = THEMES[theme];
  }

  function nextTheme() {
    const all = Object.keys(THEMES);
    setTheme(all[(all.indexOf(theme) + 1) % all.length]);
    try {
      localStorage.setItem("mtbench_ray.theme", theme);
    } catch {
      // A browser may keep nothing for files: the theme is then chosen again next time.
    }
  }

  function start() {
    try {
      setTheme(localStorage.getItem("mtbench_ray.theme") ?? "auto");
    } catch {
      setTheme("auto");
    }
    byId("theme").addEventListener("click", nextTheme);
    if (!window.DecompressionStream) {
      byId("trouble").textContent = "This browser is too old for this page: it needs one of 2023 or newer.";
      byId("trouble").hidden = false;
      return;
    }
    const judged = graders.reduce((sum, grader) => sum + grader.values.filter((one) => one !== null).length, 0);
    byId("size").textContent = [plural(models.length, "model"), plural(items.length, "question"),
      graders.length ? `${plural(judged, "judged answer")}` : ""].filter(Boolean).join(" · ");
    byId("help-keys").append(...Object.entries(KEYS).flatMap(([name, [text]]) =>
      [make("dt", {}, make("kbd", { text: name })), make("dd", { text })]));
    fillFilters();
    listen();
    show();
    document.body.dataset.ready = "yes";
    // Ready for a search before somebody types one, where that costs little memory.
    const size = items.reduce((sum, _, at) => sum + byId(`item-${at}`).textContent.length, 0);
    if (size < 4e7) whenIdle(readAll);
  }

  start();
}
