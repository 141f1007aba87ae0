// The review page: every text goes in as text, never as markup, and every answer is stored before the next pair is shown.

const TEXTS = {
  en: {
    about: "Rate whether each document answers its question. Nobody's votes are shown, and you can stop and go on later under the same name.",
    name: "Your name", begin: "Begin", grades: "Grade", place: (n, of, left) => `Pair ${n} of ${of}, ${left} left`,
    keys: "Keys: S A B C D or 1 to 5 to rate, ← → to look back and forth, n to the next pair without a grade.",
    done: "All pairs are rated. Thank you.", next: "The computer that made this page compares experts and judges with care-data vote.",
    agree: (who, share, alpha, n) => `With ${who}: the same on ${share} % of ${n} pairs, Krippendorff's alpha ${alpha}`,
    failed: (reason) => `The answer could not be stored (${reason}).`, unreachable: "the program does not answer; start care-data review again",
    S: "answers directly and completely", A: "has an answer", B: "same subject, other intent", C: "related subject", D: "unrelated",
  },
  zh: {
    about: "请判断每段文本能否回答它的问题。这里不显示任何人的评分；可以随时停下，以后用同一个名字继续。",
    name: "您的姓名", begin: "开始", grades: "评分", place: (n, of, left) => `第 ${n} 对，共 ${of} 对，还剩 ${left} 对`,
    keys: "按键：S A B C D 或 1 到 5 评分，← → 前后翻看，n 跳到下一对未评分的。",
    done: "全部评完了，谢谢。", next: "在生成本页的电脑上运行 care-data vote，可以比较专家与模型。",
    agree: (who, share, alpha, n) => `与 ${who}：${n} 对中有 ${share} % 相同，Krippendorff's alpha ${alpha}`,
    failed: (reason) => `评分没有保存（${reason}）。`, unreachable: "程序没有回应，请重新运行 care-data review",
    S: "直接、完整地回答", A: "含有答案", B: "主体相同，意图不同", C: "主体相关", D: "无关",
  },
};
const GRADES = ["S", "A", "B", "C", "D"];
const $ = (id) => document.getElementById(id);
const parameters = new URLSearchParams(location.search);
const state = { language: parameters.get("lang") || (navigator.language.startsWith("zh") ? "zh" : "en"), expert: "", tasks: [], at: 0, busy: false };
const t = (name, ...values) => {
  const text = TEXTS[state.language][name];
  return typeof text === "function" ? text(...values) : text;
};

function say() {
  document.documentElement.lang = state.language;
  $("language").textContent = state.language === "en" ? "中文" : "English";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
  $("grades").replaceChildren(...GRADES.map((grade) => {
    const button = document.createElement("button");
    const [letter, meaning] = [document.createElement("b"), document.createElement("span")];
    [letter.textContent, meaning.textContent, button.type] = [grade, t(grade), "button"];
    button.append(letter, meaning);
    button.addEventListener("click", () => rate(grade));
    return button;
  }));
  show();
}

async function ask(path, body) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, options).catch(() => { throw new Error(t("unreachable")); });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function load() {
  const { tasks, agreement } = await ask(`tasks?expert=${encodeURIComponent(state.expert)}`);
  state.tasks = tasks;
  $("agreement").replaceChildren(...agreement.map((each) => {
    const item = document.createElement("li");
    const number = (value, scale, digits) => (value === null ? "–" : (scale * value).toFixed(digits));
    item.textContent = t("agree", each.raters.find((name) => name !== state.expert), number(each.agreement.value, 100, 0),
      number(each.alpha.value, 1, 2), each.agreement.items);
    return item;
  }));
}

function firstOpen(from = 0) {
  const order = state.tasks.map((_, offset) => (from + offset) % state.tasks.length);
  const found = order.find((at) => !state.tasks[at].grade);
  return found === undefined ? state.tasks.length : found;
}

function show() {
  const task = state.tasks[state.at], left = state.tasks.filter((each) => !each.grade).length, all = state.tasks.length;
  $("start").hidden = Boolean(state.expert);
  $("who").textContent = state.expert;
  $("pair").hidden = !task;
  $("end").hidden = !all || Boolean(task);
  if (!task) return;
  $("place").textContent = t("place", state.at + 1, all, left);
  $("progress").firstElementChild.style.width = `${(100 * (all - left)) / all}%`;
  for (const [name, value] of [["aria-valuemax", all], ["aria-valuenow", all - left]]) $("progress").setAttribute(name, value);
  if ($("document").textContent !== task.document) $("document").scrollTop = 0;
  $("question").textContent = task.question;
  $("document").textContent = task.document;
  GRADES.forEach((grade, at) => $("grades").children[at].setAttribute("aria-pressed", String(grade === task.grade)));
}

async function rate(grade) {
  const task = state.tasks[state.at];
  if (!task || state.busy) return;
  state.busy = true;
  try {
    await ask("opinions", { expert: state.expert, query_id: task.query_id, document_id: task.document_id, grade });
    task.grade = grade;
    state.at = firstOpen(state.at);
    if (state.at === state.tasks.length) await load();
    $("status").textContent = "";
  } catch (error) {
    $("status").textContent = t("failed", error.message);
  }
  $("status").classList.toggle("bad", Boolean($("status").textContent));
  state.busy = false;
  show();
}

async function begin(expert) {
  state.expert = expert.trim();
  try {
    await load();
    state.at = firstOpen();
  } catch (error) {
    [state.expert, $("status").textContent] = ["", error.message];
  }
  show();
}

addEventListener("keydown", (event) => {
  if (!state.expert || event.ctrlKey || event.metaKey || event.altKey) return;
  const grade = GRADES["12345".indexOf(event.key)] || GRADES.find((each) => each === event.key.toUpperCase());
  const moves = { ArrowLeft: state.at - 1, ArrowRight: state.at + 1, n: firstOpen(state.at + 1) };
  if (grade) rate(grade);
  else if (event.key in moves) state.at = Math.max(0, Math.min(state.tasks.length - (event.key === "n" ? 0 : 1), moves[event.key]));
  else return;
  event.preventDefault();
  show();
});
$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  begin($("expert").value);
});
$("language").addEventListener("click", () => {
  state.language = state.language === "en" ? "zh" : "en";
  say();
});
say();
if (parameters.get("expert")) begin(parameters.get("expert"));
