"use strict";
// The page's behaviour. The data stand as JSON in the page; maps/page.py says what is in them.
// Everything that comes from a text is set as text (textContent), never as markup.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const TEXTS = DATA.texts;
  const N_LAYER = TEXTS[0].n_layer;
  const N_HEAD = TEXTS[0].n_head;
  const MEAN = -1; // in place of a head or a layer: the mean over them

  const state = {
    text: 0,
    snapshot: 0,
    layer: 0, // MEAN: all layers
    head: 0, // MEAN: all heads of the layer
    locked: [], // positions of the query characters, the last one locked last
    hovered: null, // position under the pointer
    cell: null, // {query, key} chosen in the enlarged map: the edge to cut
    hideFirst: false,
    several: false,
    wholeLedger: false,
    opened: {}, // what the reader unfolded or folded, by name
    language: "zh",
    theme: "light",
    timer: null, // of the play button
    isPrinting: false,
  };

  // ------------------------------------------------------------------ words

  const WORDS = JSON.parse(document.getElementById("words").textContent);
  const ICONS = { play: "M7 4.5v15l13-7.5z", pause: "M6 4.5h4.5v15H6zM13.5 4.5H18v15h-4.5z" };

  const words = () => WORDS[state.language];

  /** A sentence with its {names} filled in, as text. */
  const say = (key, values = {}) => words()[key].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

  /** The same as nodes, for sentences that hold a character of the poem. */
  function sentence(key, values) {
    return words()
      [key].split(/(\{\w+\})/)
      .map((part) => {
        const name = /^\{(\w+)\}$/.exec(part);
        const value = name ? values[name[1]] : part;
        // A node can stand in one place only; a sentence may name it twice.
        return value instanceof Node ? value.cloneNode(true) : String(value);
      });
  }

  /** Between two sentences: Chinese has no space there. */
  const between = () => (state.language === "zh" ? "" : " ");

  const percent = (value) => `${(value * 100).toFixed(1)}%`;
  const exact = (value) => (value === null || value === undefined ? "—" : value.toFixed(3));
  const brief = (value, digits = 2) => {
    if (value === null || value === undefined) return "—";
    const rounded = value.toFixed(digits);
    return (Number(rounded) ? rounded : rounded.replace("-", "")).replace("-", "−"); // no −0.000
  };

  // ------------------------------------------------------------------ small helpers

  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  /** element("td.number", { title: "…" }, child, …): attributes may be left out, strings are text. */
  const element = (kind, ...rest) => build((tag) => document.createElement(tag), kind, rest);
  const drawing = (kind, ...rest) => build((tag) => document.createElementNS(SVG, tag), kind, rest);

  function build(create, kind, rest) {
    const [tag, ...classes] = kind.split(".");
    const node = create(tag);
    if (classes.length) node.classList.add(...classes);
    if (isAttributes(rest[0])) setAttributes(node, rest.shift());
    node.append(...rest.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  const isAttributes = (value) =>
    value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Node);

  function setAttributes(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
  }

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function icon(name) {
    return drawing(
      "svg",
      { viewBox: "0 0 24 24", "aria-hidden": "true" },
      drawing("path", { d: ICONS[name] }),
    );
  }

  // ------------------------------------------------------------------ the arrays

  const text = () => TEXTS[state.text];
  const size = () => text().tokens.length;
  const snapshot = () => text().snapshots[state.snapshot];
  const isFinal = () => state.snapshot === text().snapshots.length - 1;

  /** Weights of one snapshot as Float32Array, [layer][head][query][key]: undoes pack_weights. */
  function unpack(packed, length) {
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const weights = new Float32Array(N_LAYER * N_HEAD * length * length);
    let at = 0;
    for (let map = 0; map < N_LAYER * N_HEAD; map++) {
      for (let query = 0; query < length; query++) {
        for (let key = 0; key <= query; key++) {
          let value = bytes[at++];
          if (value >= 192) value = 192 + (value - 192) * 256 + bytes[at++];
          weights[(map * length + query) * length + key] = value / 1000;
        }
      }
    }
    return weights;
  }

  const unpacked = new Map(); // unpacking takes a moment: keep what was seen

  function allWeights(which) {
    const name = `${state.text} ${which}`;
    if (!unpacked.has(name)) unpacked.set(name, unpack(text().snapshots[which].weights, size()));
    return unpacked.get(name);
  }

  const planes = new Map();

  /** One map (T × T): a head, or the mean of a layer's heads or of all of them. */
  function plane(which, layer, head) {
    const name = `${state.text} ${which} ${layer} ${head}`;
    if (!planes.has(name)) {
      const cells = size() * size();
      const all = allWeights(which);
      const first = layer === MEAN ? 0 : layer * N_HEAD + (head === MEAN ? 0 : head);
      const count = layer === MEAN ? N_LAYER * N_HEAD : head === MEAN ? N_HEAD : 1;
      const mean = new Float32Array(cells);
      for (let map = first; map < first + count; map++) {
        for (let cell = 0; cell < cells; cell++) mean[cell] += all[map * cells + cell] / count;
      }
      planes.set(name, mean);
    }
    return planes.get(name);
  }

  const currentPlane = () => plane(state.snapshot, state.layer, state.head);

  const untrainedIndex = () => text().snapshots.findIndex((saved) => saved.step === 0);
  const hasUntrained = () => untrainedIndex() >= 0;

  /** The query positions that are shown: the locked ones, else the one under the pointer. */
  function queries() {
    if (state.locked.length) return state.locked;
    return state.hovered === null ? [] : [state.hovered];
  }

  /** What the rows of `asked` give to `key`, beside the uniform share and the untrained model. */
  function share(asked, key) {
    const now = currentPlane();
    const before = hasUntrained() ? plane(untrainedIndex(), state.layer, state.head) : null;
    const result = { weight: 0, uniform: 0, untrained: before ? 0 : null };
    for (const query of asked.filter((position) => position >= key)) {
      result.weight += now[query * size() + key];
      result.uniform += 1 / (query + 1);
      if (before) result.untrained += before[query * size() + key];
    }
    return result;
  }

  const isHidden = (key) => state.hideFirst && key === 0;

  // ------------------------------------------------------------------ names

  /** How a character is shown; the newline that starts (or ends) a poem gets a visible mark. */
  function glyph(character, isEnd = false) {
    if (character === "\n") return isEnd ? words().end : words().start;
    return /^[\s\p{Cc}\p{Cf}\p{Cs}]$/u.test(character) ? "␣" : character; // what has no shape
  }

  /** A character of the text with its position, so that repeated ones stay apart. */
  function named(position) {
    const character = text().tokens[position];
    return element("span.zi", glyph(character), element("sub", String(position)));
  }

  function namedAll(positions) {
    const names = document.createDocumentFragment();
    positions.forEach((position, index) => names.append(index ? " + " : "", named(position)));
    return names;
  }

  function headName(layer, head) {
    if (layer === MEAN) return say("allMeanName");
    return say(head === MEAN ? "layerMeanName" : "headName", { layer: layer + 1, head: head + 1 });
  }

  function atlasEntry(layer, head) {
    if (layer === MEAN || head === MEAN || !DATA.atlas) return null;
    return (DATA.atlas[layer] || [])[head] || null;
  }

  const atlasName = (entry) => (state.language === "zh" ? entry.name_zh : entry.name_en);

  // ------------------------------------------------------------------ colour

  // One hue, from paper to ink, lightness changing evenly: told apart by eyes that don't see
  // colours, and in a black and white print. The scale is the square root of the weight, for
  // every head alike, because most weights are small.
  const SCALES = {
    light: [
      [247, 247, 243],
      [211, 227, 231],
      [139, 187, 208],
      [58, 124, 171],
      [13, 55, 99],
    ],
    dark: [
      [30, 33, 39],
      [33, 60, 82],
      [49, 107, 146],
      [116, 178, 206],
      [238, 246, 232],
    ],
  };
  const TICKS = [0, 0.05, 0.2, 0.5, 1];

  function colourTable(stops) {
    return Array.from({ length: 256 }, (_, index) => {
      const place = (index / 255) * (stops.length - 1);
      const left = Math.min(Math.floor(place), stops.length - 2);
      return stops[left].map((part, channel) =>
        Math.round(part + (stops[left + 1][channel] - part) * (place - left)),
      );
    });
  }

  const TABLES = { light: colourTable(SCALES.light), dark: colourTable(SCALES.dark) };
  const packedPixels = (table) =>
    Uint32Array.from(table, ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0);
  const PIXELS = { light: packedPixels(TABLES.light), dark: packedPixels(TABLES.dark) };
  const onScale = (weight) => Math.sqrt(clamp(weight, 0, 1));
  const colour = (weight) => TABLES[state.theme][Math.round(onScale(weight) * 255)];
  const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;

  /** Black or white, whichever reads better on a colour (relative luminance as in WCAG). */
  function inkOn(rgb) {
    const [red, green, blue] = rgb.map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#1f1d19" : "#fffefa";
  }

  // ------------------------------------------------------------------ the strip

  /** Positions of the text as verse lines of half lines: a line ends with 。, a half with ，. */
  function verses() {
    const lines = [[[]]];
    text().tokens.forEach((character, position) => {
      if (position === 0 && character === "\n") return;
      const line = lines[lines.length - 1];
      line[line.length - 1].push(position);
      if ("。！？\n".includes(character)) lines.push([[]]);
      else if ("，、；：".includes(character)) line.push([]);
    });
    return lines.map((line) => line.filter((half) => half.length)).filter((line) => line.length);
  }

  function buildStrip() {
    const cells = verses().map((line) =>
      element(
        "div.verse",
        { role: "none" },
        line.map((half) => element("div.half", { role: "none" }, half.map(buildCharacter))),
      ),
    );
    if (text().tokens[0] === "\n") {
      cells.unshift(
        element(
          "div.verse.first",
          { role: "none" },
          buildCharacter(0),
          element("p.hint", { "aria-hidden": "true" }, say("startNote")),
        ),
      );
    }
    // On a phone a half line fills the width: five characters may be larger than seven.
    const across = Math.max(
      ...verses()
        .flat()
        .map((half) => half.length),
    );
    byId("strip").style.setProperty("--across", clamp(across, 6, 8));
    byId("strip").replaceChildren(...cells);
    byId("strip").setAttribute("aria-label", say("strip"));
  }

  function buildCharacter(position) {
    const character = text().tokens[position];
    const cell = element(
      "div.character",
      {
        role: "option",
        tabindex: "-1",
        "data-position": position,
        "aria-label": `${glyph(character)} ${position}`,
      },
      element("span.position", String(position)),
      element("span.glyph", glyph(character)),
      element("span.weight"),
    );
    listenToCharacter(cell, position);
    return cell;
  }

  function listenToCharacter(cell, position) {
    const LONG_PRESS = 450; // ms
    let timer = null;
    let wasLong = false;
    cell.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "touch") return;
      state.hovered = position;
      renderQuery();
      showCharacterTip(cell, position);
    });
    cell.addEventListener("pointerleave", (event) => {
      clearTimeout(timer);
      if (event.pointerType === "touch") return;
      state.hovered = null;
      hideTip();
      renderQuery();
    });
    cell.addEventListener("pointerdown", (event) => {
      wasLong = false;
      if (event.pointerType !== "touch") return;
      timer = setTimeout(() => {
        wasLong = true;
        toggleQuery(position, true);
      }, LONG_PRESS);
    });
    cell.addEventListener("pointerup", () => clearTimeout(timer));
    cell.addEventListener("pointercancel", () => clearTimeout(timer));
    cell.addEventListener("contextmenu", (event) => {
      if (wasLong) event.preventDefault();
    });
    cell.addEventListener("click", (event) => {
      if (!wasLong) toggleQuery(position, event.shiftKey || event.ctrlKey || event.metaKey || state.several);
      wasLong = false;
    });
  }

  function toggleQuery(position, add) {
    const isLocked = state.locked.includes(position);
    if (add)
      state.locked = isLocked
        ? state.locked.filter((other) => other !== position)
        : [...state.locked, position];
    else state.locked = isLocked && state.locked.length === 1 ? [] : [position];
    queriesChanged();
  }

  function queriesChanged() {
    state.hovered = null; // after unlocking, show nothing until the pointer moves on
    if (state.cell && !state.locked.includes(state.cell.query)) state.cell = null;
    hideTip();
    renderQuery();
  }

  function renderStrip() {
    const asked = queries();
    const last = Math.max(...asked, -1);
    const lastLocked = asked[asked.length - 1];
    for (const cell of byId("strip").querySelectorAll(".character")) {
      const position = Number(cell.dataset.position);
      const isSeen = position <= last && !isHidden(position);
      const { weight } = asked.length && isSeen ? share(asked, position) : { weight: 0 };
      const background = asked.length && isSeen ? colour(weight) : null;
      cell.style.backgroundColor = background ? css(background) : "";
      cell.style.color = background ? inkOn(background) : "";
      cell.querySelector(".weight").textContent = asked.length && isSeen ? exact(weight) : "";
      cell.classList.toggle("asking", asked.includes(position));
      cell.classList.toggle("preview", !state.locked.length && asked.includes(position));
      cell.classList.toggle("unread", asked.length > 0 && position > last);
      cell.classList.toggle("hidden-key", isHidden(position));
      cell.classList.toggle("guessing", asked.length > 0 && position === lastLocked + 1);
      cell.classList.toggle(
        "cut-key",
        state.cell !== null &&
          asked.length === 1 &&
          asked[0] === state.cell.query &&
          state.cell.key === position,
      );
      cell.setAttribute("aria-selected", String(state.locked.includes(position)));
      cell.tabIndex = position === focusPosition() ? 0 : -1;
    }
  }

  const focusPosition = () =>
    state.locked.length ? state.locked[state.locked.length - 1] : Math.min(1, size() - 1);

  function renderQuestion() {
    const asked = queries();
    const name = headName(state.layer, state.head);
    byId("question").replaceChildren(
      ...(asked.length
        ? sentence("reading", { query: namedAll(asked), name })
        : sentence("choose", { name })),
    );
    if (asked.length && !state.locked.length) {
      byId("question").append(" ", element("span.tag", say("preview")));
    }
    byId("question-note").textContent = questionNote(asked);
  }

  function questionNote(asked) {
    if (!asked.length) return say("chooseNote");
    if (asked.length > 1) return say("sumNote", { n: asked.length });
    const seen = asked[0] + 1;
    return say("uniformNote", { share: `1/${seen} = ${exact(1 / seen)}` });
  }

  // ------------------------------------------------------------------ beside the strip

  function renderLedger() {
    const FEW = 6;
    const asked = queries();
    const last = Math.max(...asked, -1);
    const entries = [];
    for (let key = 0; key <= last; key++) if (!isHidden(key)) entries.push({ key, ...share(asked, key) });
    entries.sort((one, other) => other.weight - one.weight || one.key - other.key);
    const shown = state.wholeLedger ? entries : entries.slice(0, FEW);
    const most = Math.max(
      asked.length ? 0.05 : 1,
      ...entries.map((entry) => Math.max(entry.weight, entry.untrained || 0, entry.uniform)),
    );
    byId("ledger").replaceChildren(...shown.map((entry) => ledgerRow(entry, most)));
    const more = byId("ledger-more");
    more.hidden = entries.length <= FEW;
    more.textContent = state.wholeLedger ? say("fewer") : say("whole", { n: entries.length });
  }

  function ledgerRow(entry, most) {
    const place = (value) => `${((100 * value) / most).toFixed(2)}%`;
    const bar = element(
      "div.bullet",
      element("i.bullet-bar"),
      element("i.bullet-tick"),
      entry.untrained === null ? null : element("i.bullet-ring"),
    );
    bar.children[0].style.width = place(entry.weight);
    bar.children[1].style.left = place(entry.uniform);
    if (bar.children[2]) bar.children[2].style.left = place(entry.untrained);
    return element(
      "tr",
      element("th", { scope: "row" }, named(entry.key)),
      element("td.wide-cell", bar),
      element("td.number.strong", exact(entry.weight)),
      element("td.number", exact(entry.uniform)),
      entry.untrained === null ? null : element("td.number", exact(entry.untrained)),
    );
  }

  const nextCharacter = (position) => (position + 1 < size() ? text().tokens[position + 1] : null);

  function renderPrediction() {
    const asked = queries();
    const position = asked[asked.length - 1];
    const list = byId("guesses");
    const note = byId("prediction-note");
    const rows = text().predictions || [];
    byId("prediction").hidden = !rows.length;
    if (!rows.length || !asked.length) {
      list.replaceChildren();
      note.textContent = say("choosePrediction");
      return;
    }
    const next = nextCharacter(position);
    list.replaceChildren(
      ...rows[position].map(([character, probability]) =>
        guess(character, probability, character === next),
      ),
    );
    const query = named(position);
    note.replaceChildren(
      ...sentence("predictionNote", { query }),
      between(),
      ...(next === null ? [say("truthEnd")] : sentence("truth", { next: named(position + 1) })),
      isFinal() ? "" : between() + say("finalOnly"),
    );
  }

  function guess(character, probability, isTrue) {
    const bar = element("i.guess-bar");
    bar.style.width = `${(100 * probability).toFixed(1)}%`;
    return element(
      "li",
      { class: isTrue ? "guess true" : "guess" },
      element("span.zi", glyph(character, true)),
      element("span.guess-track", bar),
      element("span.number", percent(probability)),
      isTrue ? element("span.tag", say("actual")) : null,
    );
  }

  // ------------------------------------------------------------------ the grid of heads

  function buildHeads() {
    const layers = Array.from({ length: N_LAYER }, (_, layer) => {
      const heads = Array.from({ length: N_HEAD }, (_, head) => buildHead(layer, head));
      return element(
        "div.layer",
        element(
          "div.layer-title",
          element("h3", say("layer", { layer: layer + 1 })),
          N_HEAD > 1 ? headButton("button.pill", layer, MEAN, null, say("layerMean")) : null,
        ),
        element("div.layer-heads", heads),
      );
    });
    const columns = [4, 3, 5].find((count) => N_HEAD % count === 0) || 4; // full rows if possible
    byId("heads").style.setProperty("--columns", columns);
    byId("heads").style.setProperty("--columns-wide", clamp(N_HEAD, 4, 8));
    byId("heads").replaceChildren(...layers);
    byId("mean-all").hidden = N_LAYER * N_HEAD === 1;
  }

  function headButton(kind, layer, head, title, ...content) {
    const attributes = {
      type: "button",
      "data-layer": layer + 1,
      "data-head": head === MEAN ? "mean" : head + 1,
      title,
      onclick: () => chooseHead(layer, head),
    };
    return element(kind, attributes, ...content);
  }

  function buildHead(layer, head) {
    const entry = atlasEntry(layer, head);
    return headButton(
      "button.head",
      layer,
      head,
      entry ? atlasTitle(entry) : null,
      element("span.thumb", { "aria-hidden": "true" }, element("canvas"), element("span.thumb-rows")),
      element("span.head-label", say("head", { head: head + 1 })),
      entry
        ? element(
            "span",
            { class: entry.key === "mixed" ? "head-name mixed" : "head-name" },
            atlasName(entry),
          )
        : null,
    );
  }

  /** A head's name and the score that gave it. */
  const atlasTitle = (entry) =>
    atlasName(entry) +
    (typeof entry.score === "number" ? ` · ${say("atlasScore", { n: brief(entry.score, 1) })}` : "");

  /** The scores of a head for all kinds of places, in words. */
  function atlasScores(entry) {
    const list = Object.entries(entry.scores || {})
      .map(([kind, score]) => [kind, Array.isArray(score) ? score[0] : score])
      .filter(([, score]) => typeof score === "number")
      .map(([kind, score]) => `${words().kinds[kind] || kind} ${brief(score, 1)}`);
    return list.length ? say("atlasScores", { list: list.join(" · ") }) : "";
  }

  function chooseHead(layer, head) {
    state.layer = layer;
    state.head = head;
    renderHeadChoice();
    renderQuery();
    renderMap();
  }

  /** The heads' buttons: `.head` those with a small map, `button` the layers' means as well. */
  const headButtons = (which = ".head") =>
    [...byId("heads").querySelectorAll(which)].map((button) => ({
      button,
      layer: Number(button.dataset.layer) - 1,
      head: button.dataset.head === "mean" ? MEAN : Number(button.dataset.head) - 1,
    }));

  function renderHeads() {
    for (const { button, layer, head } of headButtons()) {
      paintSmall(button.querySelector("canvas"), plane(state.snapshot, layer, head));
    }
  }

  /** The row that is being read, in every small map. */
  function renderHeadRows() {
    const place = (position) => `${((100 * position) / size()).toFixed(2)}%`;
    for (const { button } of headButtons()) {
      button.querySelector(".thumb-rows").replaceChildren(
        ...queries().map((query) => {
          const row = element("i");
          row.style.top = place(query + 0.5);
          row.style.width = place(query + 1);
          return row;
        }),
      );
    }
  }

  function renderHeadChoice() {
    for (const { button, layer, head } of headButtons("button")) {
      button.setAttribute("aria-pressed", String(layer === state.layer && head === state.head));
    }
    byId("mean-all").setAttribute("aria-pressed", String(state.layer === MEAN));
    const title = headName(state.layer, state.head);
    const entry = atlasEntry(state.layer, state.head);
    byId("map-title").replaceChildren(
      title.charAt(0).toUpperCase() + title.slice(1),
      entry ? element("span.title-name", atlasName(entry)) : "",
    );
    byId("map-scores").textContent = entry ? atlasScores(entry) : "";
  }

  /** A whole map in little: every cell the same whole number of pixels, so none is swallowed. */
  function paintSmall(canvas, weights) {
    const length = size();
    const width = (canvas.clientWidth || 96) * (window.devicePixelRatio || 1);
    const scale = Math.max(1, Math.ceil(width / length));
    const image = new ImageData(length, length);
    const pixels = new Uint32Array(image.data.buffer);
    const table = PIXELS[state.theme];
    for (let query = 0; query < length; query++) {
      for (let key = state.hideFirst ? 1 : 0; key <= query; key++) {
        const cell = query * length + key;
        pixels[cell] = table[Math.round(onScale(weights[cell]) * 255)];
      }
    }
    const source = element("canvas", { width: length, height: length });
    source.getContext("2d").putImageData(image, 0, 0);
    canvas.width = canvas.height = length * scale;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(source, 0, 0, canvas.width, canvas.height);
  }

  // ------------------------------------------------------------------ the enlarged map

  const PAPER = 620; // CSS pixels that a map or chart may be wide on a page of A4 or letter
  let cellSize = 12; // CSS pixels, whole

  function buildMap() {
    const frame = byId("map-scroll");
    // Big enough to hit with a finger, small enough to see the whole: the frame scrolls if needed.
    const least = window.innerWidth < 720 ? 15 : 11;
    const room = state.isPrinting ? PAPER : Math.min(frame.clientWidth - 64, 720);
    cellSize = clamp(Math.floor(room / size()), state.isPrinting ? 5 : least, 34);
    byId("map").style.width = byId("map").style.height = `${size() * cellSize}px`;
    byId("map").setAttribute("aria-label", say("mapLabel"));
    byId("map-scroll").style.setProperty("--cell", `${cellSize}px`);
    byId("map-scroll").classList.toggle("tight", cellSize < 20);
    byId("mask-note").hidden = size() * cellSize < 330; // it would lie over the cells
    const labels = () =>
      text().tokens.map((character, position) =>
        element(
          "div.axis-label",
          { "data-position": position },
          element("span.axis-position", String(position)),
          element("span.axis-glyph", glyph(character)),
        ),
      );
    byId("map-keys").replaceChildren(...labels());
    byId("map-queries").replaceChildren(...labels());
  }

  function renderMap() {
    const canvas = byId("map-canvas");
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(size() * cellSize * ratio);
    const context = canvas.getContext("2d");
    const weights = currentPlane();
    const gap = cellSize >= 14 ? 1 : 0;
    for (let query = 0; query < size(); query++) {
      for (let key = 0; key <= query; key++) {
        if (isHidden(key)) continue;
        const edges = [key, query, key + 1, query + 1].map((index) => Math.round(index * cellSize * ratio));
        context.fillStyle = css(colour(weights[query * size() + key]));
        context.fillRect(edges[0], edges[1], edges[2] - edges[0] - gap, edges[3] - edges[1] - gap);
      }
    }
  }

  function renderMapMarks(pointed = null) {
    const asked = queries();
    byId("map-rows").replaceChildren(
      ...asked.map((query) => {
        const mark = element("div", { class: state.locked.length ? "mark-row" : "mark-row preview" });
        mark.style.top = `${query * cellSize}px`;
        mark.style.width = `${(query + 1) * cellSize}px`;
        return mark;
      }),
    );
    placeMark(byId("map-cell"), pointed);
    placeMark(byId("map-cut"), state.cell);
    markLabels("map-queries", asked, pointed && pointed.query);
    markLabels("map-keys", [], pointed && pointed.key);
  }

  function placeMark(mark, cell) {
    mark.hidden = !cell;
    if (!cell) return;
    mark.style.left = `${cell.key * cellSize}px`;
    mark.style.top = `${cell.query * cellSize}px`;
  }

  function markLabels(id, asked, pointed) {
    for (const label of byId(id).children) {
      const position = Number(label.dataset.position);
      label.classList.toggle("asking", asked.includes(position));
      label.classList.toggle("pointed", position === pointed);
    }
  }

  /** The cell under a pointer event; null right of the diagonal and where it is hidden. */
  function cellAt(event) {
    const frame = byId("map-canvas").getBoundingClientRect();
    const key = Math.floor(((event.clientX - frame.left) / frame.width) * size());
    const query = Math.floor(((event.clientY - frame.top) / frame.height) * size());
    const isInside = key >= 0 && query >= 0 && key < size() && query < size();
    return isInside && key <= query && !isHidden(key) ? { query, key } : null;
  }

  function listenToMap() {
    const map = byId("map");
    let cursor = null; // the keyboard's cell
    map.addEventListener("pointermove", (event) => {
      const cell = cellAt(event);
      renderMapMarks(cell);
      if (cell) showTip(tipFor([cell.query], cell.key), event.clientX, event.clientY);
      else hideTip();
    });
    map.addEventListener("pointerleave", () => {
      renderMapMarks();
      hideTip();
    });
    map.addEventListener("click", (event) => chooseCell(cellAt(event)));
    map.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in moves || event.key === "Enter"))
        return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Enter") return chooseCell(cursor);
      const start = cursor || state.cell || { query: focusPosition(), key: focusPosition() };
      const [down, right] = cursor || state.cell ? moves[event.key] : [0, 0];
      const query = clamp(start.query + down, 0, size() - 1);
      cursor = { query, key: clamp(start.key + right, 0, query) };
      renderMapMarks(cursor);
      // At once: the tooltip is placed beside it.
      byId("map-cell").scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
      const frame = map.getBoundingClientRect();
      showTip(
        tipFor([cursor.query], cursor.key),
        frame.left + (cursor.key + 1) * cellSize,
        frame.top + (cursor.query + 1) * cellSize,
      );
    });
    map.addEventListener("blur", () => {
      cursor = null;
      renderMapMarks();
      hideTip();
    });
  }

  function chooseCell(cell) {
    if (!cell) return;
    state.cell = state.cell && state.cell.query === cell.query && state.cell.key === cell.key ? null : cell;
    state.locked = [cell.query];
    renderQuery();
  }

  // ------------------------------------------------------------------ cutting an edge

  /** The cuts computed for a scope: layer and head count from 1, null means all of them. */
  function cutRows(layer, head) {
    const group = (text().cuts || []).find((scope) => scope.layer === layer && scope.head === head);
    return group ? group.rows : [];
  }

  const scopeOf = (layer, head) => [layer === MEAN ? null : layer + 1, head === MEAN ? null : head + 1];
  const findCut = (rows, { query, key }) => rows.find((row) => row[0] === query && row[1] === key) || null;

  function renderCut() {
    const hasCuts = (text().cuts || []).length > 0;
    const rows = cutRows(...scopeOf(state.layer, state.head));
    const parts = hasCuts ? [element("h3", say("cutTitle"))] : [];
    if (state.cell) parts.push(...chosenCell(hasCuts), ...(hasCuts ? cutResult(rows) : []));
    else parts.push(element("p.hint", say(hasCuts ? "cutHow" : "cellHow")), ...strongestCuts(rows));
    byId("cut").replaceChildren(...parts);
  }

  /** The cell's own numbers: a finger cannot hover. */
  function chosenCell(hasCuts) {
    const { query, key } = state.cell;
    const edge = [named(query), " → ", named(key)];
    return [element("p.cut-edge", hasCuts ? say("cut") : null, edge), ...figures([query], key)];
  }

  function cutResult(rows) {
    const cut = findCut(rows, state.cell);
    const { query } = state.cell;
    const body = cut ? [cutTruth(cut, query), cutTable(cut, query)] : [element("p.hint", say("cutMissing"))];
    return [...body, cutScopes(), element("p.hint", say("cutFinal"))];
  }

  function cutTruth(cut, query) {
    if (cut[2] === null || nextCharacter(query) === null) return element("p.hint", say("cutNoTruth"));
    return element(
      "p",
      sentence("cutTruth", { next: named(query + 1), factor: element("b", percent(Math.exp(cut[2] / 1000))) }),
    );
  }

  /** The likeliest characters before and after, side by side. */
  function cutTable(cut, query) {
    const after = Array.from(cut[3]).map((character, index) => [character, cut[4 + index] / 1000]);
    const before = ((text().predictions || [])[query] || []).slice(0, after.length);
    const next = nextCharacter(query);
    const column = (title, row) =>
      element(
        "div",
        element("h4", title),
        element(
          "ol.guesses",
          row.map(([character, probability]) => guess(character, probability, character === next)),
        ),
      );
    return element("div.cut-table", column(say("cutBefore"), before), column(say("cutAfter"), after));
  }

  /** The same edge cut in one head, in its layer, everywhere. */
  function cutScopes() {
    const scopes = [["cutAll", null, null]];
    if (state.layer !== MEAN) scopes.unshift(["cutLayer", state.layer + 1, null]);
    if (state.layer !== MEAN && state.head !== MEAN)
      scopes.unshift(["cutHead", state.layer + 1, state.head + 1]);
    const rows = scopes.map(([label, layer, head]) => {
      const cut = findCut(cutRows(layer, head), state.cell);
      const delta = cut && cut[2] !== null ? brief(cut[2] / 1000, 3) : "—";
      return element("tr", element("th", { scope: "row" }, say(label)), element("td.number", delta));
    });
    return element(
      "table.scopes",
      element(
        "thead",
        element(
          "tr",
          element("th", { scope: "col" }, say("cutScope")),
          element("th", { scope: "col" }, say("cutDelta")),
        ),
      ),
      element("tbody", rows),
    );
  }

  function strongestCuts(rows) {
    const strongest = rows
      .filter((row) => row[2] !== null)
      .sort((one, other) => Math.abs(other[2]) - Math.abs(one[2]))
      .slice(0, 5);
    if (!strongest.length) return [];
    const items = strongest.map((row) =>
      element(
        "li",
        element(
          "button",
          { type: "button", class: "edge", onclick: () => chooseCell({ query: row[0], key: row[1] }) },
          named(row[0]),
          " → ",
          named(row[1]),
          element("span.number", brief(row[2] / 1000, 3)),
        ),
      ),
    );
    return [
      element("h4", say("cutBest"), " ", element("small", say("cutDeltaNote"))),
      element("ul.edges", items),
    ];
  }

  // ------------------------------------------------------------------ the tooltip

  function tipFor(asked, key) {
    const isUnread = asked.every((query) => key > query);
    return [
      element("p", namedAll(asked), " → ", named(key)),
      ...(isUnread ? [element("p.hint", say("notRead"))] : figures(asked, key)),
    ];
  }

  /** A weight beside what it has to be compared with. */
  function figures(asked, key) {
    const values = share(asked, key);
    const row = (label, value, isStrong) =>
      element(
        "tr",
        element("th", { scope: "row" }, label),
        element("td", { class: isStrong ? "number strong" : "number" }, value),
      );
    return [
      element(
        "table.figures",
        element(
          "tbody",
          row(say("weight"), exact(values.weight), true),
          row(say("uniform"), exact(values.uniform)),
          hasUntrained() ? row(say("untrained"), exact(values.untrained)) : null,
        ),
      ),
      element("p.hint", say("times", { n: brief(values.weight / values.uniform, 1) })),
    ];
  }

  function showTip(content, x, y) {
    const tip = byId("tooltip");
    tip.replaceChildren(...content);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > window.innerWidth ? x - 16 - width : x + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${clamp(y + 18, 8, window.innerHeight - height - 8)}px`;
  }

  const hideTip = () => (byId("tooltip").hidden = true);

  function showCharacterTip(cell, position) {
    if (!state.locked.length || isHidden(position)) return;
    const frame = cell.getBoundingClientRect();
    showTip(tipFor(state.locked, position), frame.left + frame.width / 2, frame.bottom - 8);
  }

  // ------------------------------------------------------------------ texts, steps, play

  function buildTexts() {
    const list = byId("texts");
    const openings = TEXTS.map((each) => opening(each.tokens));
    list.setAttribute("aria-label", say("texts"));
    list.hidden = TEXTS.length < 2;
    list.replaceChildren(
      ...TEXTS.map((each, index) =>
        element(
          "button",
          {
            type: "button",
            class: "text",
            "data-text": index,
            "aria-pressed": String(index === state.text),
            onclick: () => chooseText(index),
          },
          openings[index],
          openings.filter((other) => other === openings[index]).length > 1
            ? element("sub", String(index + 1))
            : null,
        ),
      ),
    );
  }

  /** The first half line of a text, mostly enough to know it by. */
  function opening(tokens) {
    const body = tokens.filter((character) => character !== "\n");
    const stop = body.findIndex((character) => "，。！？、；：".includes(character));
    const end = stop > 0 ? stop : body.length;
    return body.slice(0, Math.min(end, 9)).join("") + (end > 9 ? "…" : "");
  }

  function chooseText(index) {
    const step = snapshot().step;
    state.text = index;
    state.cell = null;
    state.hovered = null;
    state.wholeLedger = false;
    state.locked = firstQuery();
    state.snapshot = nearestSnapshot(step);
    renderEverything();
  }

  function nearestSnapshot(step) {
    const distances = text().snapshots.map((saved) => Math.abs(saved.step - step));
    return distances.indexOf(Math.min(...distances));
  }

  /** Where to begin: the pair that is asked about where it stands in the text, else the last word. */
  function firstQuery() {
    const { query = "光", key = "月" } = DATA.evidence || {};
    const tokens = text().tokens;
    const firstKey = tokens.findIndex((character) => key.includes(character));
    const asked = tokens.findIndex(
      (character, position) => firstKey >= 0 && firstKey < position && query.includes(character),
    );
    if (asked >= 0) return [asked];
    const spoken = tokens
      .map((_, position) => position)
      .filter((position) => /[\p{L}\p{N}]/u.test(tokens[position]));
    return [spoken.length ? spoken[spoken.length - 1] : tokens.length - 1];
  }

  /** The head that the evidence chose, else the first one named after meaning, else the mean. */
  function firstHead() {
    const chosen = DATA.evidence && DATA.evidence.chosen;
    if (chosen && chosen.layer <= N_LAYER && chosen.head <= N_HEAD)
      return [chosen.layer - 1, chosen.head - 1];
    const kinds = (DATA.atlas || []).flat().map((entry) => entry.key);
    const first = N_LAYER * N_HEAD === 1 ? 0 : kinds.indexOf("meaning");
    return first < 0 ? [MEAN, MEAN] : [Math.floor(first / N_HEAD), first % N_HEAD];
  }

  function renderTimeline() {
    const { step, val_loss: loss } = snapshot();
    const slider = byId("step");
    slider.max = text().snapshots.length - 1;
    slider.value = state.snapshot;
    slider.hidden = byId("play").hidden = text().snapshots.length < 2;
    const label = [say("step", { step })];
    if (typeof loss === "number")
      label.push(say("loss", { loss: exact(loss) }), say("guess", { n: Math.round(Math.exp(loss)) }));
    byId("step-label").replaceChildren(...label.map((part) => element("span", part)));
    slider.setAttribute("aria-label", say("stepSlider"));
    slider.setAttribute("aria-valuetext", label.join(", "));
    const name = state.timer === null ? "play" : "pause";
    byId("play").replaceChildren(icon(name));
    byId("play").setAttribute("aria-label", say(name));
    byId("play").title = say(name);
  }

  function chooseSnapshot(index) {
    state.snapshot = clamp(index, 0, text().snapshots.length - 1);
    renderTimeline();
    renderHeads();
    renderMap();
    renderQuery();
    renderChartMark();
  }

  function play() {
    const BETWEEN = 700; // ms a snapshot: time to look
    if (state.timer !== null) return stop();
    if (text().snapshots.length < 2) return;
    if (isFinal()) chooseSnapshot(0);
    state.timer = setInterval(() => {
      chooseSnapshot(state.snapshot + 1);
      if (isFinal()) stop();
    }, BETWEEN);
    renderTimeline();
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    renderTimeline();
  }

  // ------------------------------------------------------------------ the loss chart

  const NAME_HEIGHT = 16; // pixels from one name in the chart to the next
  const chart = { left: 44, right: 16, top: 24, bottom: 38, height: 264, width: 0, x: null, y: null };

  function lossRows() {
    if (DATA.loss && DATA.loss.length) return DATA.loss;
    return text()
      .snapshots.filter((saved) => typeof saved.val_loss === "number")
      .map((saved) => [saved.step, null, saved.val_loss]);
  }

  function buildChart() {
    const holder = byId("chart");
    const rows = lossRows();
    const values = rows.flatMap((row) => row.slice(1)).filter((value) => typeof value === "number");
    byId("training").hidden = values.length < 2;
    if (values.length < 2) return holder.replaceChildren();
    const baselines = (DATA.run && DATA.run.baselines) || [];
    values.push(...baselines.map((line) => line.loss));
    const top = Math.max(...values);
    const bottom = Math.min(...values);
    const last = Math.max(...rows.map((row) => row[0]), 1);
    chart.width = state.isPrinting ? PAPER : Math.max(holder.clientWidth, 240);
    chart.x = (step) => chart.left + (step / last) * (chart.width - chart.left - chart.right);
    const low = bottom - 0.06 * (top - bottom || 1);
    chart.y = (loss) =>
      chart.top + ((top - loss) / (top - low || 1)) * (chart.height - chart.top - chart.bottom);
    const svg = drawing(
      "svg",
      {
        width: chart.width,
        height: chart.height,
        viewBox: `0 0 ${chart.width} ${chart.height}`,
        role: "img",
        "aria-label": `${say("chartLoss")} / ${say("chartStep")}`,
      },
      chartAxes(low, top, last),
      baselines.map(chartBaseline),
      chartLine(rows, 1, "curve train"),
      chartLine(rows, 2, "curve val"),
      drawing("line", {
        id: "chart-mark",
        class: "chart-mark",
        y1: chart.top,
        y2: chart.height - chart.bottom,
      }),
      chartDots(),
      chartNames(baselines, rows),
    );
    holder.replaceChildren(svg);
    renderChartMark();
  }

  function chartAxes(low, top, last) {
    const nodes = [];
    for (let loss = Math.ceil(low); loss <= top; loss++) {
      nodes.push(
        drawing("line.grid", {
          x1: chart.left,
          x2: chart.width - chart.right,
          y1: chart.y(loss),
          y2: chart.y(loss),
        }),
      );
      nodes.push(
        drawing("text.tick", { x: chart.left - 8, y: chart.y(loss) + 4, "text-anchor": "end" }, String(loss)),
      );
    }
    const step = Math.max(1, niceStep(last / (chart.width / 110)));
    for (let at = 0; at <= last; at += step) {
      nodes.push(
        drawing(
          "text.tick",
          { x: chart.x(at), y: chart.height - chart.bottom + 18, "text-anchor": "middle" },
          String(at),
        ),
      );
    }
    nodes.push(
      drawing(
        "text.tick",
        { x: chart.width - chart.right, y: chart.height - 2, "text-anchor": "end" },
        say("chartStep"),
      ),
    );
    return nodes;
  }

  /** The next number above `rough` that people like to count in: 1, 2 or 5 with zeros. */
  function niceStep(rough) {
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  }

  function chartBaseline(line) {
    const y = chart.y(line.loss);
    return drawing("line.baseline", { x1: chart.left, x2: chart.width - chart.right, y1: y, y2: y });
  }

  function chartLine(rows, column, name) {
    const points = rows
      .filter((row) => typeof row[column] === "number")
      .map((row) => `${chart.x(row[0]).toFixed(1)},${chart.y(row[column]).toFixed(1)}`);
    return points.length > 1 ? drawing("polyline", { class: name, points: points.join(" ") }) : null;
  }

  function chartDots() {
    return text().snapshots.flatMap((saved, index) =>
      typeof saved.val_loss !== "number"
        ? []
        : [
            drawing(
              "circle.dot",
              {
                "data-snapshot": index,
                cx: chart.x(saved.step),
                cy: chart.y(saved.val_loss),
                r: 4,
                onclick: () => chooseSnapshot(index),
              },
              drawing(
                "title",
                `${say("step", { step: saved.step })} · ${say("loss", { loss: exact(saved.val_loss) })}`,
              ),
            ),
          ],
    );
  }

  /** Names at the right ends of curves and baselines instead of a legend, so far apart that none lies
   * on another. */
  function chartNames(baselines, rows) {
    const names = baselines.map((line) => ({
      kind: "baseline-label",
      y: chart.y(line.loss) - 5,
      text: `${line[state.language] || line.zh || line.en} ${brief(line.loss)}`,
    }));
    for (const [column, name, shift] of [
      [1, "train", 16],
      [2, "val", -10],
    ]) {
      const known = rows.map((row) => row[column]).filter((loss) => typeof loss === "number");
      if (known.length < 2) continue;
      const end = known[known.length - 1];
      names.push({ kind: `curve-label ${name}`, y: chart.y(end) + shift, text: `${say(name)} ${brief(end)}` });
    }
    names.sort((one, other) => one.y - other.y);
    let lowest = -Infinity;
    for (const name of names) lowest = name.y = Math.max(name.y, lowest + NAME_HEIGHT);
    let highest = chart.height - chart.bottom + NAME_HEIGHT / 2;
    for (const name of names.slice().reverse()) highest = name.y = Math.min(name.y, highest - NAME_HEIGHT);
    const x = chart.width - chart.right - 12;
    return names.map(({ kind, y, text }) => drawing("text", { class: kind, x, y, "text-anchor": "end" }, text));
  }

  function renderChartMark() {
    const mark = byId("chart-mark");
    if (!mark) return;
    const x = chart.x(Math.min(snapshot().step, Math.max(...lossRows().map((row) => row[0]))));
    mark.setAttribute("x1", x);
    mark.setAttribute("x2", x);
    for (const dot of byId("chart").querySelectorAll(".dot"))
      dot.classList.toggle("now", Number(dot.dataset.snapshot) === state.snapshot);
  }

  // ------------------------------------------------------------------ evidence

  function buildEvidence() {
    const evidence = DATA.evidence;
    if (!evidence) {
      byId("evidence-body").replaceChildren(
        element("p.hint", say("noEvidence")),
        ...((DATA.run || {}).commands || []).map((command) => element("pre", command)),
      );
      return;
    }
    const pair = { query: evidence.query, key: shortened(evidence.key || "") };
    const how = say("askHow", { ...pair, distance: evidence.min_distance || 2 });
    const poems = evidence.poems ? between() + say("poems", evidence.poems) : "";
    byId("evidence-body").replaceChildren(
      element("p.ask", say("ask", pair)),
      element("p.hint", how + poems),
      liftTable(evidence.rows || [], { label: say("pair"), cell: pairCell }),
      element("p.hint", say("liftNote")),
      ...everyHead(evidence, pair),
      element("div.beside", cutCosts(evidence, pair), partners(evidence, pair)),
      ...method(evidence),
    );
  }

  const isNarrow = () => window.innerWidth <= 900; // where the tables become cards, as in page.css

  /** A part to unfold; it stays as the reader left it when the page is drawn anew. */
  function folded(name, isOpen, title, ...content) {
    const details = element(`details.${name}`, element("summary", title), ...content);
    details.open = name in state.opened ? state.opened[name] : isOpen;
    details.firstChild.addEventListener("click", () => (state.opened[name] = !details.open));
    return details;
  }

  /** A key may be any of many characters: a rhyme. */
  const shortened = (key) => (key.length > 3 ? `${key.slice(0, 3)}…` : key);
  const MOST = 100; // times; larger ones were cut to this
  const range = (interval, digits) => {
    const [value, low, high] = interval.map((number) => (number >= MOST ? `>${MOST}` : brief(number, digits)));
    return `${value} [${low}, ${high}]`;
  };

  /**
   * A table of figures and drawn intervals. A column: {label, cell(row) -> content, axis where it
   * is drawn}. On a phone each row becomes a card, so every cell carries its column's name; a drawn
   * one its `short` name, where there are several.
   */
  function forest(columns, rows, kindOf) {
    const head = columns.map(({ label, short, axis }) =>
      axis
        ? element("th.plot-cell", { scope: "col", "data-label": short && "" }, element("span", label), axis.head())
        : element("th", { scope: "col" }, label),
    );
    const line = (row) => {
      const [first, ...others] = columns;
      const cells = others.map(({ label, short, axis, cell }) =>
        axis
          ? element("td.plot-cell", { "data-label": short }, cell(row))
          : element("td.number", { "data-label": label }, cell(row)),
      );
      return element("tr", { class: kindOf(row) }, element("th", { scope: "row" }, first.cell(row)), cells);
    };
    return element(
      "div.table-scroll",
      element("table.forest", element("thead", element("tr", head)), element("tbody", rows.map(line))),
    );
  }

  /** A column that draws one interval a row, and another {name, kind} to compare it with. */
  function drawn(label, axis, name, kindOf, { digits = 2, compared = null, short = null } = {}) {
    const cell = (row) => {
      if (row.too_small || !row[name]) return element("span.small-n", say("tooSmall"));
      const marks = [{ interval: row[name], kind: kindOf(row) }];
      if (compared) marks.push({ interval: row[compared.name], kind: compared.kind });
      return [axis.draw(marks), element("span.number", range(row[name], digits))];
    };
    return { label, short, axis, cell };
  }

  const countColumn = () => ({
    label: say("occasions"),
    cell: (row) => (row.left_out ? `${row.n} +${row.left_out}` : String(row.n)),
  });
  /** The share of cases that are matched by distance alone, for either lift. */
  const matchColumn = () => ({
    label: say("byDistance"),
    cell: (row) => (row.n ? row.by_distance.map((share) => `${Math.round(100 * share)}%`).join(", ") : "—"),
  });
  const headColumn = () => ({
    label: say("headColumn"),
    cell: (row) => (row.layer ? `${row.layer}·${row.head}` : "—"),
  });
  const intervals = (rows, ...names) => rows.flatMap((row) => names.flatMap((name) => row[name] || []));

  function liftTable(rows, firstColumn) {
    const axis = logAxis(intervals(rows, "lift1", "lift2"));
    const kindOf = (row) => {
      if (row.role === "asked" || row.chosen) return "asked";
      return row.role === "related" ? "related" : "other";
    };
    const columns = [
      firstColumn,
      countColumn(),
      ...(rows.some((row) => row.by_distance) ? [matchColumn()] : []),
      headColumn(),
      { label: say("meanWeight"), cell: (row) => exact(row.weight) },
      ...["lift1", "lift2"].map((lift) =>
        drawn(say(lift), axis, lift, kindOf, {
          compared: { name: `mean_heads_${lift}`, kind: "mean" },
          short: say(`${lift}Short`),
        }),
      ),
      {
        label: say("topShare"),
        cell: (row) => (typeof row.top_share === "number" ? `${Math.round(100 * row.top_share)}%` : "—"),
      },
    ];
    return forest(columns, rows, kindOf);
  }

  const pairCell = (row) => [
    element("span.pair", { title: row.key }, `${row.query} → ${shortened(row.key)}`),
    element("span.tag", words().role[row.role] || row.role),
    row.own_head && row.role !== "asked" ? element("span.tag", say("ownHead")) : null,
  ];

  function everyHead(evidence, pair) {
    if (!(evidence.heads || []).length) return [];
    const cell = (row) => {
      const entry = atlasEntry(row.layer - 1, row.head - 1);
      return [
        say("headName", row),
        entry ? element("span.head-name", atlasName(entry)) : null,
        row.chosen ? element("span.tag", say("chosenHead")) : null,
      ];
    };
    const asked = (evidence.rows || []).find((row) => row.role === "asked") || { n: "" };
    const rows = evidence.heads.map((row) => ({ n: asked.n, left_out: asked.left_out, ...row }));
    const table = liftTable(rows, { label: say("headColumn"), cell });
    return [folded("heads", false, say("allHeads", pair), table)];
  }

  function cutCosts(evidence, pair) {
    const rows = evidence.cuts || [];
    if (!rows.length) return null;
    const axis = linearAxis(intervals(rows, "cut", "control"));
    const asked = () => "asked";
    const scope = (row) => {
      const place = [row.layer, row.head].filter(Boolean).join("·");
      return `${words().scopes[row.scope] || row.scope} ${place}`;
    };
    const columns = [
      { label: say("scope"), cell: scope },
      countColumn(),
      drawn(say("cutChange"), axis, "cut", asked, {
        digits: 3,
        compared: { name: "control", kind: "other" },
      }),
      { label: say("difference"), cell: (row) => (row.difference ? range(row.difference, 3) : "—") },
    ];
    return folded(
      "cuts",
      !isNarrow(),
      say("cutsTitle", pair),
      forest(columns, rows, asked),
      element("p.hint", say("cutsNote")),
    );
  }

  function partners(evidence, pair) {
    const rows = evidence.partners || [];
    if (!rows.length) return null;
    const axis = logAxis(intervals(rows, "lift"));
    const kindOf = (row) => (row.key === pair.key ? "asked" : "related");
    const columns = [
      { label: say("partner"), cell: (row) => element("span.pair", row.key) },
      countColumn(),
      headColumn(),
      drawn(say("lift"), axis, "lift", kindOf),
    ];
    const FEW = 10;
    const others = rows.slice(FEW);
    const more = () =>
      folded("more-partners", false, say("more", { n: others.length }), forest(columns, others, kindOf));
    return folded(
      "partners",
      !isNarrow(),
      say("partnersTitle", pair),
      element("p.hint", say("partnersNote")),
      forest(columns, rows.slice(0, FEW), kindOf),
      others.length ? more() : null,
    );
  }

  function method(evidence) {
    const notes = (evidence.notes || {})[state.language] || [];
    if (!notes.length) return [];
    const list = element(
      "ul.hint",
      notes.map((note) => element("li", note)),
    );
    return [folded("method", false, say("method"), list)];
  }

  const PLOT = { height: 22, margin: 8 }; // CSS pixels
  const plotWidth = () => (window.innerWidth <= 720 || state.isPrinting ? 140 : 190);

  /** Whole powers of two around the values: 2 times more lies as far from 1 as 2 times less. */
  function logAxis(values) {
    const exponents = values.filter((value) => value > 0).map(Math.log2);
    const low = clamp(Math.floor(Math.min(-1, ...exponents)), -3, -1);
    const high = clamp(Math.ceil(Math.max(1, ...exponents)), 1, 7);
    const place = (value) => (clamp(Math.log2(Math.max(value, 1e-9)), low, high) - low) / (high - low);
    const ticks = Array.from({ length: high - low + 1 }, (_, index) => 2 ** (low + index));
    const isNamed = (tick) => ticks.length < 7 || Math.log2(tick) % 2 === 0;
    const name = (tick) => (tick < 1 ? `1/${1 / tick}` : String(tick));
    return plotAxis(place, ticks, (tick) => (isNamed(tick) ? name(tick) : ""), 1);
  }

  function linearAxis(values) {
    const low = Math.min(0, ...values);
    const high = Math.max(0, ...values);
    const span = high - low || 1;
    const step = niceStep(span / 3);
    const first = Math.ceil(low / step);
    const ticks = Array.from(
      { length: Math.floor(high / step) - first + 1 },
      (_, index) => (first + index) * step,
    );
    const digits = Math.max(0, Math.ceil(-Math.log10(step)));
    return plotAxis(
      (value) => (value - low) / span,
      ticks,
      (tick) => (tick ? brief(tick, digits) : "0"),
      0,
    );
  }

  /** Intervals drawn on an axis that the rows of a table share; `none` is the value of no effect. */
  function plotAxis(place, ticks, name, none) {
    const x = (value) => PLOT.margin + place(value) * (plotWidth() - 2 * PLOT.margin);
    const label = (tick) => drawing("text.tick", { x: x(tick), y: 12, "text-anchor": "middle" }, name(tick));
    const rule = (tick) => upright(tick === none ? "line.rule.none" : "line.rule", x(tick), 0, PLOT.height);
    return {
      head: () =>
        plot(
          16,
          ticks.map(label),
        ),
      draw: (marks) =>
        plot(
          PLOT.height,
          ticks.map(rule),
          drawMarks(
            marks.filter(({ interval }) => interval),
            x,
          ),
        ),
    };
  }

  const upright = (kind, x, y1, y2) => drawing(kind, { x1: x, x2: x, y1, y2 });

  const plot = (height, ...children) =>
    drawing(
      "svg.plot",
      { width: plotWidth(), height, viewBox: `0 0 ${plotWidth()} ${height}`, "aria-hidden": "true" },
      children,
    );

  /** Several intervals lie below each other; a mean's tick needs no line of its own. */
  function drawMarks(marks, x) {
    const lines = marks.filter(({ kind }) => kind !== "mean");
    return marks.map((mark) => drawMark(mark, x, (lines.indexOf(mark) + 1) / (lines.length + 1)));
  }

  /** A dot with its interval at a height between 0 and 1; of a mean only a tick in the middle. */
  function drawMark({ interval, kind }, x, height) {
    const [value, low, high] = interval.map(x);
    if (kind === "mean") return upright("line.mean", value, PLOT.height * 0.25, PLOT.height * 0.75);
    const y = PLOT.height * height;
    return drawing(
      `g.${kind}`,
      drawing("line.whisker", { x1: low, x2: high, y1: y, y2: y }),
      drawing("circle.estimate", { cx: value, cy: y, r: 3.5 }),
    );
  }

  // ------------------------------------------------------------------ footer, language, theme

  function buildFooter() {
    const run = DATA.run || {};
    const parts = [];
    if (typeof run.step === "number" && typeof run.val_loss === "number")
      parts.push(element("p", say("finalModel", { step: run.step, loss: exact(run.val_loss) })));
    const entries = Object.entries(run.config || {});
    if (entries.length) {
      parts.push(
        folded(
          "config",
          false,
          say("config"),
          element(
            "dl",
            entries.map(([name, value]) => element("div", element("dt", name), element("dd", String(value)))),
          ),
        ),
      );
    }
    byId("footer").replaceChildren(...parts);
  }

  function renderRamp() {
    const context = byId("ramp").getContext("2d");
    for (let x = 0; x < 256; x++) {
      context.fillStyle = css(TABLES[state.theme][x]);
      context.fillRect(x, 0, 1, 1);
    }
    byId("ramp-ticks").replaceChildren(
      ...TICKS.map((tick) => {
        const label = element("span", String(tick));
        label.style.left = `${100 * onScale(tick)}%`;
        return label;
      }),
    );
  }

  function setLanguage(language) {
    state.language = language;
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    byId("language").textContent = say("language");
    byId("language").lang = language === "zh" ? "en" : "zh-CN";
  }

  function setTheme(theme) {
    state.theme = theme;
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = say(theme === "dark" ? "light" : "dark");
  }

  // ------------------------------------------------------------------ keys

  function listenToKeys() {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code);
      if (event.key === "Escape") unlock();
      else if (digit) chooseByDigit(Number(digit[1]), event.shiftKey);
      else if (event.target.matches("input[type=range]")) return;
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight")
        moveQuery(event.key === "ArrowLeft" ? -1 : 1, event);
      else if ((event.key === "ArrowUp" || event.key === "ArrowDown") && byId("strip").contains(event.target))
        moveLine(event.key === "ArrowUp" ? -1 : 1, event);
      else if (event.key === " " && !event.target.matches("button, input, summary, a")) {
        event.preventDefault();
        play();
      } else if (event.key === "Enter" && event.target.matches(".character"))
        toggleQuery(Number(event.target.dataset.position), event.shiftKey);
    });
  }

  function unlock() {
    state.locked = [];
    queriesChanged();
  }

  function chooseByDigit(digit, isLayer) {
    const layer = state.layer === MEAN ? 0 : state.layer;
    if (isLayer && digit >= 1 && digit <= N_LAYER) chooseHead(digit - 1, state.head);
    else if (!isLayer && digit === 0) chooseHead(state.layer, MEAN);
    else if (!isLayer && digit <= N_HEAD) chooseHead(layer, digit - 1);
  }

  function lockOnly(position, event) {
    event.preventDefault();
    state.locked = [clamp(position, 0, size() - 1)];
    queriesChanged();
    if (byId("strip").contains(document.activeElement))
      byId("strip").querySelector(`[data-position="${state.locked[0]}"]`).focus();
  }

  function moveQuery(by, event) {
    lockOnly(state.locked.length ? focusPosition() + by : focusPosition(), event);
  }

  /** Up and down: the same place in the verse line before or after. */
  function moveLine(by, event) {
    const lines = verses().map((line) => line.flat());
    const at = lines.findIndex((line) => line.includes(focusPosition()));
    const column = at < 0 ? 0 : lines[at].indexOf(focusPosition());
    const line = lines[clamp(at + by, 0, lines.length - 1)];
    lockOnly(line[Math.min(column, line.length - 1)], event);
  }

  // ------------------------------------------------------------------ putting it together

  /** What the page has no data for isn't spoken of. A folder of maps alone has no evidence to come. */
  function hideAbsent() {
    const isWithEvidence = Boolean(DATA.evidence || DATA.run);
    byId("evidence").hidden = !isWithEvidence;
    for (const each of document.querySelectorAll(".of-evidence")) each.hidden = !isWithEvidence;
    for (const each of document.querySelectorAll(".of-untrained")) each.hidden = !hasUntrained();
    for (const each of document.querySelectorAll(".of-atlas")) each.hidden = !DATA.atlas;
  }

  /** What depends on the query characters. */
  function renderQuery() {
    renderQuestion();
    renderStrip();
    renderLedger();
    renderPrediction();
    renderHeadRows();
    renderMapMarks();
    renderCut();
  }

  /** Everything, after a change of text, language, theme or width. */
  function renderEverything() {
    byId("sink").hidden = !state.hideFirst;
    hideAbsent();
    buildTexts();
    buildStrip();
    buildHeads();
    buildMap();
    renderTimeline();
    renderHeadChoice();
    renderRamp();
    renderHeads();
    renderMap();
    renderQuery();
    buildChart();
    buildEvidence();
    buildFooter();
  }

  function listen() {
    byId("language").addEventListener("click", () => {
      setLanguage(state.language === "zh" ? "en" : "zh");
      setTheme(state.theme);
      renderEverything();
    });
    byId("theme").addEventListener("click", () => {
      setTheme(state.theme === "dark" ? "light" : "dark");
      renderEverything();
    });
    byId("several").addEventListener("change", (event) => (state.several = event.target.checked));
    byId("hide-first").addEventListener("change", (event) => {
      state.hideFirst = event.target.checked;
      byId("sink").hidden = !state.hideFirst;
      renderHeads();
      renderMap();
      renderQuery();
    });
    byId("mean-all").addEventListener("click", () => chooseHead(MEAN, MEAN));
    byId("ledger-more").addEventListener("click", () => {
      state.wholeLedger = !state.wholeLedger;
      renderLedger();
    });
    byId("play").addEventListener("click", play);
    byId("step").addEventListener("input", (event) => {
      if (state.timer !== null) stop();
      chooseSnapshot(Number(event.target.value));
    });
    let width = window.innerWidth;
    // What the tooltip is about slides away under the pointer.
    window.addEventListener("wheel", hideTip, { passive: true });
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return; // a phone's address bar only changes the height
      width = window.innerWidth;
      renderEverything();
    });
    listenToMap();
    listenToKeys();
    listenToPrinting();
  }

  /** Paper is white, and its map can't be scrolled. */
  function listenToPrinting() {
    let before = null;
    window.addEventListener("beforeprint", () => {
      before = state.theme;
      state.isPrinting = true;
      setTheme("light");
      renderEverything();
    });
    window.addEventListener("afterprint", () => {
      state.isPrinting = false;
      if (before) setTheme(before);
      renderEverything();
    });
  }

  function start() {
    setLanguage((navigator.language || "zh").toLowerCase().startsWith("zh") ? "zh" : "en");
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    setTheme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", (event) => {
      setTheme(event.matches ? "dark" : "light");
      renderEverything();
    });
    state.snapshot = text().snapshots.length - 1;
    [state.layer, state.head] = firstHead();
    state.locked = firstQuery();
    listen();
    renderEverything();
  }

  start();
})();
