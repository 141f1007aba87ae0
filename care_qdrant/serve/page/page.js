// The search page: every text goes in as text, never as markup, and every request goes to the service it came from.

const TEXTS = {
  en: {
    skip: "Skip to the results", copyLink: "Copy link", copyCurl: "Copy as curl", keys: "Shortcuts", query: "Query",
    search: "Search", collection: "Collection", topK: "Hits", conditions: "Conditions", compare: "Compare ways to search", sideBySide: "Side by side", tools: "Tools",
    wrongModel: "Ask with the wrong model", relevant: "Relevant", notRelevant: "Not relevant", labelled: (n) => `Kept: ${n} ${n === 1 ? "question has" : "questions have"} a relevant document.`,
    refusedTitle: (status, code) => `Refused: HTTP ${status}, ${code}`, wrongAsked: (model) => `The same question, from a client that expects model ${model}:`,
    wrongMeans: "Two models have two vector spaces. Distances between them mean nothing, but most systems would still return hits. Here it is an error.", notRefused: "The service answered all the same.",
    keySlash: "to the search box", keyJk: "next, previous hit", keyHl: "column to the left, to the right",
    keyEnter: "open or close the details of a hit", keyHelp: "this list", close: "Close",
    dense: "dense", sparse: "BM25", hybrid: "hybrid", searching: "Searching…", copied: "Copied",
    copyFailed: "The browser does not allow copying; the link is in the address bar.",
    nothing: "No hits.", none: "This service has no collection to search; start it with --collection.",
    pick: "Choose at least one way to search.", details: "Details", score: "score",
    summary: (hits, columns) => columns === 1 ? `${hits} hits` : `${hits} hits in ${columns} columns`,
    shared: (common) => `${common} in common with the first column`, first: "the other columns are compared with this one",
    encode: "encode", qdrant: "Qdrant", wait: "wait", milliseconds: "ms",
    up: (n) => `up ${n}`, down: (n) => `down ${n}`, same: "same rank", fresh: "not in the first column", unreachable: "The service does not answer.",
    more: "Conditions and number of hits", tryOne: "Try:", any: "any", moreKeys: (keys) => `Also: ${keys}`, refused: "The request was refused", away: "Qdrant does not answer", waiting: "Qdrant has not answered yet; the page goes on asking.", unsearchable: "The collection cannot be searched now", busy: "The service is busy; try again in a moment",
    about: (points, model) => `${points.toLocaleString("en")} texts${model ? `, searched with the model ${model}` : ""}.`,
    meansDense: "Score: cosine of the query and the text, from −1 to 1.",
    meansSparse: "Score: BM25, a sum over shared terms; it compares texts of one query only.",
    meansHybrid: "Score: weighted sum of cosine and scaled BM25; it can exceed 1.",
    meansGood: (score) => ` Most questions of this collection reach ${score}.`,
    poor: (score) => `No good match: the best score is below ${score}, which most questions of this collection reach. The collection may have no answer.`,
    unread: (words) => `No good match: this model does not read ${words}, so the scores mean nothing. Choose BM25 alone, which compares words.`,
  },
  zh: {
    skip: "跳到结果", copyLink: "复制链接", copyCurl: "复制为 curl", keys: "快捷键", query: "问题",
    search: "搜索", collection: "集合", topK: "条数", conditions: "条件", compare: "比较各种搜索方式", sideBySide: "并排比较", tools: "工具",
    wrongModel: "用错误的模型提问", relevant: "相关", notRelevant: "不相关", labelled: (n) => `已保存：${n} 个问题有相关文档。`,
    refusedTitle: (status, code) => `已拒绝：HTTP ${status}，${code}`, wrongAsked: (model) => `同一个问题，由以为模型是 ${model} 的客户端提出：`,
    wrongMeans: "两个模型的向量属于两个空间，它们之间的距离没有意义，但搜索照样会返回结果。在这里返回的是错误。", notRefused: "服务仍然作了回答。",
    keySlash: "回到搜索框", keyJk: "下一条、上一条", keyHl: "左边一列、右边一列",
    keyEnter: "展开或收起一条的详情", keyHelp: "显示本表", close: "关闭",
    dense: "稠密", sparse: "BM25", hybrid: "混合", searching: "正在搜索……", copied: "已复制",
    copyFailed: "浏览器不允许复制；链接就在地址栏里。",
    nothing: "没有结果。", none: "本服务没有可搜索的集合；请用 --collection 启动。",
    pick: "请至少选择一种搜索方式。", details: "详情", score: "得分",
    summary: (hits, columns) => columns === 1 ? `${hits} 条` : `${columns} 列，共 ${hits} 条`,
    shared: (common) => `与第一列有 ${common} 条相同`, first: "其他列都与这一列比较",
    encode: "编码", qdrant: "Qdrant", wait: "等待", milliseconds: "毫秒",
    up: (n) => `上升 ${n}`, down: (n) => `下降 ${n}`, same: "名次相同", fresh: "第一列中没有", unreachable: "服务没有回应。",
    more: "筛选条件与结果条数", tryOne: "试试：", any: "不限", moreKeys: (keys) => `还可用：${keys}`, refused: "请求被拒绝", away: "Qdrant 没有回应", waiting: "Qdrant 尚未回应；本页会继续询问。", unsearchable: "这个集合现在不能搜索", busy: "服务繁忙，请稍后再试",
    about: (points, model) => `在 ${points.toLocaleString("zh")} 段文本中搜索${model ? `，使用模型 ${model}` : ""}。`,
    meansDense: "得分：问题与文本的余弦相似度，从 −1 到 1。",
    meansSparse: "得分：BM25，即共有词的权重之和；只能在同一个问题内比较。",
    meansHybrid: "得分：余弦与缩放后的 BM25 的加权和，可以超过 1。",
    meansGood: (score) => `这个集合里的问题一般能达到 ${score}。`,
    poor: (score) => `没有好的匹配：最高得分低于 ${score}，而这个集合里的问题一般都能达到。集合里可能没有答案。`,
    unread: (words) => `没有好的匹配：这个模型读不懂 ${words}，得分没有意义。请改用只比较词语的 BM25。`,
  },
};
const MAX_COLUMNS = 3; // of a comparison that nobody chose
const MAX_WORDS = 5; // that the model does not read, as messages name them
const PATIENCE_MS = 1500; // until the page says that it waits for the collections
const [FIRST_RETRY_MS, LAST_RETRY_MS] = [2000, 60000];
const $ = (id) => document.getElementById(id);
const LEAD = 40; // characters shown before the first marked term of a long text
const state = { language: "en", collections: [], last: [], open: null, goodMatches: new Map(), labels: new Map(), keepsLabels: false, problem: "", isTyping: false, isComposing: false, asking: new AbortController() };
const t = (name, ...values) => {
  const text = TEXTS[state.language][name];
  return typeof text === "function" ? text(...values) : text;
};

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function send(path, body, signal) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(t("unreachable"));
  }
  return [response, await response.json()];
}

async function ask(path, body, signal) {
  const [response, answer] = await send(path, body, signal);
  if (!response.ok) throw new Error(reasonOf(answer));
  return answer;
}

// The kind of a refusal in the language of the page, then the reason as the service gives it.
function reasonOf({ error, code }) {
  if (code === "unknown_collection" && !state.collections.length && !/several/.test(error)) return t("none");
  const kinds = { queue_full: "busy", not_ready: "busy", qdrant_unreachable: "away", qdrant_failed: "away" };
  return `${t(kinds[code] ?? "refused")}: ${error}`;
}

// Asked once for each way to search, where the collection does not keep it yet: it costs some sixty searches.
function fetchGoodMatches() {
  for (const { column, answer } of state.last) {
    const [mode, model] = split(column);
    const key = `${$("collection").value} ${column}`;
    if (!model || !answer || answer.good_match_score !== null || state.goodMatches.has(key)) continue;
    state.goodMatches.set(key, null);
    ask("good-match", { collection: $("collection").value, model, mode }).then(
      ({ good_match_score: score }) => { state.goodMatches.set(key, score); if (score !== null) render(); },
      () => state.goodMatches.delete(key),
    );
  }
}

// As a condition takes it: a text stands in quotes where it would be read as something else, or be cut.
function written(value) {
  if (typeof value !== "string") return String(value);
  const isOther = value !== value.trim() || /[;；"]/.test(value) || /^(true|false|null)$/i.test(value) || /^[=<>!]/.test(value) || (value && !Number.isNaN(Number(value)));
  return isOther ? JSON.stringify(value) : value;
}

const goodMatchOf = (column, answer) => answer.good_match_score ?? state.goodMatches.get(`${$("collection").value} ${column}`) ?? null;

function showCollection() {
  const here = current();
  const models = (here?.models ?? []).map((model) => model.slice(0, model.lastIndexOf("@"))).join(", ");
  $("about").textContent = here && !here.problem ? t("about", here.points, models) : "";
  $("title").textContent = here?.name ?? "care search";
  document.title = here ? `${here.name} – care search` : "care search";
  $("wrong-model").hidden = !here?.models.length;
  const questions = here?.questions ?? [];
  $("examples").hidden = !questions.length;
  $("examples").replaceChildren($("examples").firstElementChild, ...questions.map((text) => {
    const button = element("button", { type: "button" }, element("span", { lang: "zh-CN" }, text));
    const gloss = here.glosses[text];
    if (gloss && state.language === "en") button.append(element("small", {}, gloss));
    if (!gloss) button.firstElementChild.removeAttribute("lang");
    button.addEventListener("click", () => { $("query").value = text; searchNow(); });
    return button;
  }));
  const keys = Object.entries(here?.keys ?? {});
  const few = keys.filter(([, values]) => values.length > 1);
  const rest = keys.filter(([key]) => !few.some(([name]) => name === key)).map(([key]) => key);
  $("conditions").title = rest.length ? t("moreKeys", rest.join(", ")) : "";
  const [sample] = keys;
  $("conditions").placeholder = sample ? `${sample[0]}=${sample[1].length ? written(sample[1][0]) : "…"}${rest.length ? `; ${rest[0]}=…` : ""}` : "key=value";
  $("facets").replaceChildren(...few.map(([key, values]) => {
    const choice = element("select", {}, element("option", { value: "" }, t("any")), ...values.map((value) => element("option", { value: written(value) }, String(value))));
    const set = conditions().find((part) => part.startsWith(`${key}=`));
    choice.value = set ? set.slice(key.length + 1) : "";
    choice.addEventListener("change", () => {
      const others = conditions().filter((part) => !part.startsWith(`${key}=`));
      $("conditions").value = [...others, ...(choice.value ? [`${key}=${choice.value}`] : [])].join("; ");
      searchNow();
    });
    return element("label", {}, element("span", {}, key), " ", choice);
  }));
  $("collection").parentElement.hidden = state.collections.length < 2;
}

// A column is "dense:model", "hybrid:model" or "sparse:"; the last one is shown where nothing is compared.
function columnsOf(collection) {
  const models = collection?.models ?? [];
  const lexical = collection?.sparse ? ["sparse:"] : [];
  const mixed = collection?.sparse ? models.map((model) => `hybrid:${model}`) : [];
  const all = [...models.map((model) => `dense:${model}`), ...lexical, ...mixed];
  const best = [mixed, all].find((columns) => columns.length)?.[0];
  return best ? [...all.filter((column) => column !== best), best] : [];
}

// A model is shown with its fingerprint only where another one has the same name.
function columnName(column) {
  const [mode, model] = split(column);
  const models = current()?.models ?? [];
  if (!model || models.length < 2) return t(mode);
  const name = model.slice(0, model.lastIndexOf("@"));
  const namesakes = models.filter((other) => other.startsWith(`${name}@`)).length;
  return `${t(mode)} · ${namesakes > 1 ? model : name}`;
}

const split = (column) => [column.slice(0, column.indexOf(":")), column.slice(column.indexOf(":") + 1)];
const current = () => state.collections.find((collection) => collection.name === $("collection").value);
const chosen = () => $("compare").checked ? [...$("columns").querySelectorAll("input:checked")].map((box) => box.value) : columnsOf(current()).slice(-1);
// Apart at semicolons, but not inside double quotes.
const conditions = () => ($("conditions").value.match(/(?:"(?:[^"\\]|\\.)*"|[^;；])+/g) ?? []).map((part) => part.trim()).filter(Boolean);

function showColumns(wanted) {
  const there = columnsOf(current());
  const models = current()?.models ?? [];
  const byDefault = there.filter((column) => !split(column)[1] || split(column)[1] === models[0]);
  const picked = new Set((wanted ?? []).filter((column) => there.includes(column)));
  const initial = picked.size ? picked : new Set(byDefault.slice(-MAX_COLUMNS));
  $("columns").replaceChildren(...there.map((column) => {
    const box = element("input", { type: "checkbox", value: column });
    box.checked = initial.has(column);
    return element("label", {}, box, ` ${columnName(column)}`);
  }));
  $("choice").hidden = !$("compare").checked;
  $("compare").disabled = there.length < 2;
}

const ticked = () => [...$("columns").querySelectorAll("input:checked")].map((box) => box.value);

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function applyLanguage(language) {
  state.language = language;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
  const other = language === "zh" ? "en" : "zh";
  $("language").textContent = other === "zh" ? "中文" : "English";
  $("language").lang = other;
  showCollection();
  showColumns(ticked());
  render();
}

// A question is one entry of the history, however many letters were typed for it.
function remember() {
  const address = new URLSearchParams({ q: $("query").value, collection: $("collection").value, k: $("top-k").value, lang: state.language });
  if (conditions().length) address.set("where", conditions().join(";"));
  if ($("compare").checked) for (const column of chosen()) address.append("column", column);
  const goesOn = history.state?.isTyping && (state.isTyping || `?${address}` === location.search);
  if (!goesOn && `?${address}` === location.search) return;
  history[goesOn ? "replaceState" : "pushState"]({ isTyping: state.isTyping }, "", `?${address}`);
}

function searchNow() {
  state.isTyping = false;
  return search();
}

function bodyOf(column) {
  const [mode, model] = split(column);
  const body = { query: $("query").value, collection: $("collection").value, mode, top_k: Number($("top-k").value) || 10 };
  if (model) body.model = model;
  if (conditions().length) body.conditions = conditions();
  return body;
}

// Why there is nothing to search; empty where there is something.
function problem() {
  if (state.problem) return state.problem;
  if (!state.collections.length) return t("none");
  return current()?.problem ? `${t("unsearchable")}: ${current().problem}` : "";
}

async function loadCollections(wanted) {
  state.problem = "";
  const waiting = setTimeout(() => say(t("waiting"), true), PATIENCE_MS);
  try {
    ({ collections: state.collections, labels: state.keepsLabels } = await ask("collections"));
  } catch (error) {
    state.problem = error.message;
  } finally {
    clearTimeout(waiting);
  }
  $("collection").replaceChildren(...state.collections.map(({ name }) => element("option", { value: name }, name)));
  if (state.collections.some(({ name }) => name === wanted)) $("collection").value = wanted;
}

// Asks again for what was away, ever more rarely, until it is back.
function retry(pause = FIRST_RETRY_MS) {
  clearTimeout(state.retrying);
  if (!problem()) return;
  state.retrying = setTimeout(async () => {
    const address = new URLSearchParams(location.search);
    await loadCollections($("collection").value || address.get("collection"));
    showCollection();
    showColumns(address.getAll("column"));
    if (problem()) {
      say(problem(), true);
      return retry(Math.min(2 * pause, LAST_RETRY_MS));
    }
    if ($("query").value) await search(false);
    else say("");
  }, pause);
}

function clear() {
  state.asking.abort();
  state.last = [];
  $("results").replaceChildren();
  $("tabs").replaceChildren();
  $("results").removeAttribute("aria-busy");
  say("");
}

async function search(isNew = true) {
  if (!$("query").value.trim()) return clear();
  if (problem()) { // what was away may be back
    const address = new URLSearchParams(location.search);
    await loadCollections($("collection").value || address.get("collection"));
    showCollection();
    showColumns(address.getAll("column"));
  }
  const columns = chosen();
  if (!columns.length) return say(problem() || t("pick"), true);
  if (isNew) remember();
  state.asking.abort(); // whose answers nobody waits for any more
  const asking = state.asking = new AbortController();
  if (!state.isTyping) say(t("searching"));
  $("results").setAttribute("aria-busy", "true");
  const answers = await Promise.all(columns.map(async (column) => {
    try {
      return { column, answer: await ask("search", { ...bodyOf(column), marks: true }, asking.signal) };
    } catch (error) {
      return { column, error: error.message };
    }
  }));
  if (asking.signal.aborted) return; // a later search has begun
  state.last = answers;
  $("results").removeAttribute("aria-busy");
  render();
  if (!state.isTyping) fetchGoodMatches();
}

// What a client is answered that asks by another model than the one that made the vectors.
async function askWrongly() {
  if (!$("query").value.trim()) $("query").value = current().questions[0] ?? "?";
  clear();
  const [model] = current().models;
  const name = model.slice(0, model.lastIndexOf("@"));
  const wrong = `${name}@${[...model.slice(name.length + 1)].reverse().join("")}`;
  const [response, answer] = await send("search", { query: $("query").value, collection: $("collection").value, model: wrong });
  const title = response.ok ? t("notRefused") : t("refusedTitle", response.status, answer.code);
  $("results").replaceChildren(element("section", { class: "column refusal", "aria-label": title },
    element("h2", {}, title), element("p", {}, t("wrongAsked", wrong)), element("blockquote", {}, answer.error ?? ""), element("p", {}, t("wrongMeans"))));
  $("results").focus();
}

// On a narrow screen one column is open at a time; on a wide one the tabs are not shown.
function showTabs() {
  const wanted = (test) => state.last.findIndex(({ column }) => test(column));
  const open = [wanted((column) => column === state.open), wanted((column) => column.startsWith("hybrid:")), 0].find((number) => number >= 0);
  const columns = [...$("results").querySelectorAll(".column")];
  columns.forEach((column, number) => column.toggleAttribute("data-open", number === open));
  $("tabs").replaceChildren(...(columns.length < 2 ? [] : state.last.map(({ column }, number) => {
    const tab = element("button", { type: "button", "aria-pressed": String(number === open) }, columnName(column));
    tab.addEventListener("click", () => { state.open = column; showTabs(); });
    return tab;
  })));
}

function render() {
  if (!state.last.length) return;
  const [{ error }] = state.last;
  if (error && state.last.every((result) => result.error === error)) {
    $("results").replaceChildren();
    $("tabs").replaceChildren();
    return say(error, true);
  }
  const ranks = state.last.map(({ answer }) => new Map((answer?.hits ?? []).map((hit, index) => [hit.document_id, index])));
  $("results").replaceChildren(...state.last.map((result, number) => renderColumn(result, number, ranks)));
  const hits = state.last.reduce((sum, { answer }) => sum + (answer?.hits.length ?? 0), 0);
  showTabs();
  say(t("summary", hits, state.last.length));
}

function renderColumn({ column, answer, error }, number, ranks) {
  const name = columnName(column);
  const section = element("section", { class: "column", "aria-label": name }, element("h2", {}, name));
  if (error) {
    section.append(element("p", { class: "error", role: "alert" }, error));
    return section;
  }
  section.append(...renderTime(answer.timing_ms));
  const good = goodMatchOf(column, answer);
  const means = { dense: "meansDense", sparse: "meansSparse", hybrid: "meansHybrid" }[answer.mode];
  section.append(element("p", { class: "meaning" }, t(means) + (good === null ? "" : t("meansGood", good.toFixed(2)))));
  const isPoor = good !== null && answer.hits.length && answer.hits[0].score < good;
  if (answer.unread.length || isPoor)
    section.append(element("p", { class: "poor" }, answer.unread.length ? t("unread", someOf(answer.unread)) : t("poor", good.toFixed(2))));
  if (state.last.length > 1) {
    const common = answer.hits.filter((hit) => ranks[0].has(hit.document_id)).length;
    section.append(element("p", { class: "facts" }, number ? t("shared", common) : t("first")));
  }
  if (!answer.hits.length) section.append(element("p", {}, t("nothing")));
  if (answer.note) section.append(element("p", { class: "poor" }, answer.note));
  const list = element("ol");
  answer.hits.forEach((hit, rank) => list.append(renderHit(hit, rank, number ? ranks[0] : null, good)));
  section.append(list);
  return section;
}

function someOf(words) {
  const apart = [...new Set(words)];
  return apart.slice(0, MAX_WORDS).join(", ") + (apart.length > MAX_WORDS ? ", …" : "");
}

function renderTime(time) {
  const parts = [["wait", "wait"], ["encode", "encode"], ["search", "qdrant"]];
  const bar = element("div", { class: "time", "aria-hidden": "true" });
  const facts = element("p", { class: "facts" }, `${time.total.toFixed(1)} ${t("milliseconds")} =`);
  for (const [part, name] of parts) {
    const piece = element("span", { class: part });
    piece.style.width = `${(100 * time[part]) / Math.max(time.total, 0.001)}%`;
    bar.append(piece);
    facts.append(part === "wait" ? " " : " + ", element("span", { class: `key ${part}` }, `${t(name)} ${time[part].toFixed(1)}`));
  }
  return [facts, bar];
}

function renderHit(hit, rank, first, good) {
  const top = element("div", { class: "top" }, element("span", { class: "rank" }, `${rank + 1}`));
  if (first) top.append(movement(rank, first.get(hit.document_id)));
  top.append(element("span", { class: "score" }, `${t("score")} ${hit.score.toFixed(4)}`));
  const item = element("li", { class: good !== null && hit.score < good ? "hit below" : "hit", tabindex: "-1" }, top);
  if (hit.title) item.append(element("h3", {}, ...marked(hit.title, hit.title_marks)));
  const text = element("p", { class: "short" }, ...marked(...excerpt(hit)));
  const rows = [["document", hit.document_id], ["chunk", hit.chunk], ["point", hit.point_id], ...Object.entries(hit.metadata)];
  const table = element("table", {}, element("tbody", {}, ...rows.map(([key, value]) =>
    element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, typeof value === "string" ? value : JSON.stringify(value))))));
  const details = element("details", {}, element("summary", {}, `${t("details")}: ${hit.document_id}`), table);
  details.addEventListener("toggle", () => {
    text.classList.toggle("short", !details.open);
    text.replaceChildren(...(details.open ? marked(hit.text, hit.marks) : marked(...excerpt(hit))));
  });
  item.append(text, details);
  if (state.keepsLabels) item.append(renderThumbs(hit));
  return item;
}

function renderThumbs({ document_id, relevant: kept }) {
  const query = $("query").value;
  const key = JSON.stringify([$("collection").value, query, document_id]);
  const group = element("div", { class: "thumbs", "data-key": key });
  if (!state.labels.has(key)) state.labels.set(key, kept); // judged before this page was loaded
  for (const [relevant, sign, name] of [[true, "✓", "relevant"], [false, "✗", "notRelevant"]]) {
    const thumb = element("button", { type: "button", "aria-pressed": String(state.labels.get(key) === relevant) }, `${sign} ${t(name)}`);
    thumb.addEventListener("click", () => label(group, { query, document_id, relevant: state.labels.get(key) === relevant ? null : relevant }));
    group.append(thumb);
  }
  return group;
}

async function label(group, said) {
  const { key } = group.dataset;
  try {
    const { questions } = await ask("labels", { collection: $("collection").value, ...said });
    state.labels.set(key, said.relevant);
    for (const shown of $("results").querySelectorAll(".thumbs")) // a document may stand in several columns
      if (shown.dataset.key === key)
        [true, false].forEach((relevant, number) => shown.children[number].setAttribute("aria-pressed", String(said.relevant === relevant)));
    say(t("labelled", questions));
  } catch (error) {
    say(error.message, true);
  }
}

function movement(rank, before) {
  if (before === undefined) return element("span", { class: "up", title: t("fresh") }, `+ ${t("fresh")}`);
  if (before === rank) return element("span", {}, `= ${t("same")}`);
  const moved = before - rank;
  return moved > 0 ? element("span", { class: "up" }, `▲ ${t("up", moved)}`) : element("span", { class: "down" }, `▼ ${t("down", -moved)}`);
}

// Places count characters, and a string of JavaScript counts halves of some of them.
function marked(text, places) {
  const characters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const [start, end] of places) {
    parts.push(characters.slice(at, start).join(""), element("mark", {}, characters.slice(start, end).join("")));
    at = end;
  }
  return [...parts, characters.slice(at).join("")];
}

// A long text begins shortly before its first marked term, so that the term is seen.
function excerpt({ text, marks }) {
  const from = marks.length ? marks[0][0] - LEAD : 0;
  if (from < 2 * LEAD) return [text, marks];
  return [`…${Array.from(text).slice(from).join("")}`, marks.map(([start, end]) => [start - from + 1, end - from + 1])];
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(t("copied"));
  } catch {
    say(t("copyFailed"), true);
  }
}

function curl() {
  const [column] = chosen();
  if (!column) return say(problem() || t("pick"), true);
  const quoted = JSON.stringify(bodyOf(column)).replaceAll("'", "'\\''");
  copy(`curl -s ${location.origin}${location.pathname}search -H 'Content-Type: application/json' -d '${quoted}'`);
}

function moveFocus(key) {
  const columns = [...$("results").querySelectorAll(".column")].map((column) => [...column.querySelectorAll(".hit")]);
  if (!columns.some((column) => column.length)) return;
  const hit = document.activeElement?.closest?.(".hit");
  let x = columns.findIndex((column) => column.includes(hit));
  let y = x < 0 ? -1 : columns[x].indexOf(hit);
  if (x < 0) [x, y] = [columns.findIndex((column) => column.length), 0];
  else if (key === "j") y += 1;
  else if (key === "k") y -= 1;
  else x += key === "l" ? 1 : -1;
  const column = columns[Math.min(Math.max(x, 0), columns.length - 1)];
  const target = column[Math.min(Math.max(y, 0), column.length - 1)];
  target?.focus();
  target?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape" && typing) {
    event.preventDefault(); // the browser would empty the search box
    return event.target.blur();
  }
  if (typing) return;
  if (event.key === "/") $("query").focus(), $("query").select();
  else if (event.key === "?") $("help").showModal();
  else if ("jkhl".includes(event.key)) moveFocus(event.key);
  else if (event.key === "Enter" && event.target.matches(".hit")) {
    const details = event.target.querySelector("details");
    details.open = !details.open;
  } else return;
  event.preventDefault();
});
$("form").addEventListener("submit", (event) => { event.preventDefault(); searchNow(); });
// While an input method composes, the box holds Latin letters that nobody means.
$("query").addEventListener("compositionstart", () => { state.isComposing = true; });
$("query").addEventListener("compositionend", () => { state.isComposing = false; type(); });
$("query").addEventListener("input", () => { if (!state.isComposing) type(); });
$("query").addEventListener("change", () => { state.isTyping = false; if ($("query").value.trim()) remember(); fetchGoodMatches(); });
$("collection").addEventListener("change", () => { showCollection(); showColumns(); searchNow(); });
$("conditions").addEventListener("change", () => { showCollection(); searchNow(); });
$("top-k").addEventListener("change", searchNow);
$("columns").addEventListener("change", searchNow);
$("compare").addEventListener("change", () => { showColumns(ticked()); searchNow(); });
$("wrong-model").addEventListener("click", askWrongly);
$("copy-link").addEventListener("click", () => { remember(); copy(location.href); });
$("copy-curl").addEventListener("click", curl);
$("help-open").addEventListener("click", () => $("help").showModal());
$("language").addEventListener("click", () => { applyLanguage(state.language === "zh" ? "en" : "zh"); state.isTyping = false; remember(); });

function type() {
  state.isTyping = true;
  search();
}

// Shows what the address says; a step back or forward comes here as well.
async function show() {
  const address = new URLSearchParams(location.search);
  const asked = address.get("lang") ?? navigator.language;
  state.language = asked.startsWith("zh") ? "zh" : "en";
  state.isTyping = false;
  $("query").value = address.get("q") ?? "";
  $("top-k").value = address.get("k") ?? "10";
  $("conditions").value = address.get("where") ?? "";
  if (!state.collections.length) await loadCollections(address.get("collection"));
  else if (state.collections.some(({ name }) => name === address.get("collection"))) $("collection").value = address.get("collection");
  $("compare").checked = address.has("column");
  showColumns(address.getAll("column"));
  applyLanguage(state.language);
  const trouble = problem() || current()?.unfinished;
  if (trouble) say(trouble, state.problem || state.collections.length);
  if (conditions().length) $("more").open = true;
  if ($("query").value) await search(false);
  else if (!trouble) clear();
  retry();
}

addEventListener("popstate", show);
show();
