// The chat and the view of the server: a client of /v1/chat/completions, /v1/models, /metrics and /cache. What comes from a model becomes text
// nodes and nothing else. Paths are relative: the page also works below a proxy's prefix.

const byId = (id) => document.getElementById(id);
const clone = (id) => byId(id).content.firstElementChild.cloneNode(true);

// ---- Requests

/** A reply that is no success; `status` is 0 if none came. */
class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (byId("key").value) headers.Authorization = `Bearer ${byId("key").value}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  if (response.status === 401) askForKey();
  const text = await response.text();
  throw new RequestError(response.status, messageOf(text) || `${response.status} ${response.statusText}`);
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim();
  }
}

/** The data of each server-sent event, as it comes; comments have none. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let seen = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    seen += value;
    const whole = seen.split(/\r?\n\r?\n/);
    seen = whole.pop();
    for (const event of whole) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}

// ---- Settings: kept by the browser, but the key only until its tab is closed

const numbers = ["temperature", "top_p", "max_tokens", "seed"];
const kept = ["system", ...numbers, "thinking", "tools"];

function restoreSettings() {
  for (const id of kept) {
    byId(id).value = localStorage.getItem(`calandra.${id}`) ?? "";
    byId(id).addEventListener("change", () => localStorage.setItem(`calandra.${id}`, byId(id).value));
  }
  byId("key").value = sessionStorage.getItem("calandra.key") ?? "";
  byId("key-label").hidden = byId("key").value === "";
  byId("key").addEventListener("change", () => {
    sessionStorage.setItem("calandra.key", byId("key").value);
    say("");
    meetServer();
  });
}

/** The fields of a request that the settings make; throws with the name of one that is wrong. */
function requestFields() {
  const fields = {};
  for (const id of numbers) {
    const input = byId(id);
    if (!input.validity.valid) throw new Error(`${id}: ${input.validationMessage}`);
    if (input.value !== "") fields[id] = Number(input.value);
  }
  const thinking = byId("thinking").value;
  if (thinking) fields.chat_template_kwargs = { enable_thinking: thinking === "on" };
  if (byId("tools").value.trim()) {
    try {
      fields.tools = JSON.parse(byId("tools").value);
    } catch (error) {
      throw new Error(`Tools: ${error.message}`);
    }
  }
  return fields;
}

function showSide(shown) {
  byId("side").hidden = !shown;
  byId("toggle").setAttribute("aria-expanded", String(shown));
}

function askForKey() {
  byId("key-label").hidden = false;
  showSide(true);
  byId("key").focus();
}

function say(text, isBad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", isBad);
}

// ---- The conversation

let messages = []; // as requests carry them, without the system prompt
let openCalls = []; // calls of the last answer, whose results the next request carries: {id, result: textarea}
let running = null; // AbortController of the answer under way

/** Adds to an element's one text node, and so costs the same however long the text is. */
function append(element, text) {
  if (!element.firstChild) element.append("");
  element.firstChild.appendData(text);
}

// The end of the log is followed until the user scrolls up, once a frame: to measure the log for every token would cost more than the rest.
let follows = true;
let lastTop = 0;
let frame = 0;

function noteScroll() {
  const log = byId("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  follows = isAtEnd || (follows && log.scrollTop >= lastTop);
  lastTop = log.scrollTop;
}

function followEnd() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    if (follows) byId("log").scrollTop = byId("log").scrollHeight;
  });
}

function addArticle(role, name) {
  const article = clone("message-template");
  article.classList.add(role);
  article.querySelector("h2").textContent = name;
  const content = article.querySelector(".content");
  article.querySelector(".copy").addEventListener("click", () => copy(content));
  byId("log").append(article);
  return article;
}

async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    say("copied");
  } catch {
    // Browsers have no clipboard for pages that came without TLS: the user takes it from here.
    getSelection().selectAllChildren(element);
    say("selected: copy it with Ctrl+C");
  }
}

/** An answer as it grows, on the page and as the message that later requests carry. */
class Answer {
  message = { role: "assistant", content: "" };
  finish = null;
  usage = null;
  began = performance.now();
  first = null; // when its first piece came
  calls = []; // {card, id, name, arguments}

  constructor() {
    this.article = addArticle("assistant", "Answer");
    this.article.setAttribute("aria-busy", "true"); // read aloud once it is whole
    this.reasoning = this.article.querySelector(".reasoning");
    this.content = this.article.querySelector(".content");
  }

  take(chunk) {
    if (chunk.error) throw new RequestError(200, chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const { reasoning_content: reasoning, content, tool_calls: calls } = choice.delta;
    if (reasoning || content || calls) this.first ??= performance.now();
    if (reasoning) {
      this.reasoning.hidden = false;
      this.message.reasoning_content = (this.message.reasoning_content ?? "") + reasoning;
      append(this.reasoning.querySelector(".text"), reasoning);
    }
    if (content) {
      this.message.content += content;
      append(this.content, content);
    }
    for (const delta of calls ?? []) this.takeCall(delta);
  }

  takeCall(delta) {
    let call = this.calls[delta.index];
    if (!call) {
      call = { card: clone("call-template"), id: delta.id, name: delta.function.name, arguments: "" };
      this.calls[delta.index] = call;
      call.card.querySelector("h3").textContent = call.name;
      this.article.querySelector(".calls").append(call.card);
    }
    const more = delta.function.arguments ?? "";
    call.arguments += more;
    append(call.card.querySelector("pre"), more);
  }

  /** With `isWhole` the calls wait for results; those of an answer that was cut off are only shown. */
  end(isWhole, note) {
    this.article.setAttribute("aria-busy", "false");
    this.article.querySelector("footer").textContent = [note, ...this.costs()].filter(Boolean).join(" · ");
    if (!isWhole || !this.calls.length) return [];
    this.message.tool_calls = this.calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
    return this.calls.map((call) => {
      call.card.querySelector("label").hidden = false;
      return { id: call.id, result: call.card.querySelector("textarea") };
    });
  }

  costs() {
    if (!this.usage || this.first === null) return [];
    const tokens = this.usage.completion_tokens;
    const seconds = (performance.now() - this.first) / 1000;
    const reasoning = this.usage.completion_tokens_details?.reasoning_tokens;
    const cached = this.usage.prompt_tokens_details?.cached_tokens;
    return [
      `${tokens} tokens${reasoning ? ` (${reasoning} of reasoning)` : ""}`,
      tokens > 1 && seconds > 0 ? `${short((tokens - 1) / seconds)} tokens/s` : "",
      `first after ${short((this.first - this.began) / 1000)} s`,
      `prompt ${this.usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`,
    ];
  }
}

/** The results of open calls and what was typed, moved from the page into the conversation. False if there is nothing to say. */
function takeInput() {
  const text = byId("prompt").value;
  const hasUnsentResults = messages.at(-1)?.role === "tool"; // of a request that was refused
  if (!text.trim() && !openCalls.length && !hasUnsentResults) return false;
  for (const { id, result } of openCalls) {
    messages.push({ role: "tool", tool_call_id: id, content: result.value });
    result.readOnly = true;
  }
  openCalls = [];
  if (text.trim()) {
    messages.push({ role: "user", content: text });
    append(addArticle("user", "You").querySelector(".content"), text);
    byId("prompt").value = "";
  }
  follows = true;
  followEnd();
  return true;
}

async function send() {
  if (running) return;
  let fields;
  try {
    fields = requestFields();
  } catch (error) {
    say(error.message, true);
    return;
  }
  if (!takeInput()) return;
  const system = byId("system").value;
  const body = {
    messages: system.trim() ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    ...fields,
  };
  const conversation = messages; // a new chat begins another one
  const abort = new AbortController();
  setRunning(abort);
  say("waiting…");
  let answer;
  let isWhole = false; // the answer came to its end
  let isBad = false;
  let note = "";
  try {
    const response = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: abort.signal,
    });
    answer = new Answer();
    say("answering…");
    for await (const data of events(response.body)) {
      if (data === "[DONE]") isWhole = true;
      else answer.take(JSON.parse(data));
      followEnd();
    }
    if (!isWhole) throw new RequestError(0, "the connection ended before the answer did");
    note = answer.finish === "length" ? "cut off: no more tokens" : "";
  } catch (error) {
    note = error.name === "AbortError" ? "stopped" : error.message;
    isBad = error.name !== "AbortError";
  }
  if (conversation !== messages) return;
  setRunning(null);
  say(note || "answered", isBad);
  if (!answer) return putBack();
  openCalls = answer.end(isWhole, note);
  followEnd();
  messages.push(answer.message);
  openCalls[0]?.result.focus();
}

/** A request that was refused, or stopped before it began, is typed again rather than lost. */
function putBack() {
  if (messages.at(-1)?.role !== "user") return;
  const { content } = messages.pop();
  byId("log").lastElementChild.remove();
  if (!byId("prompt").value) byId("prompt").value = content;
}

function setRunning(abort) {
  running = abort;
  byId("send").hidden = abort !== null;
  byId("stop").hidden = abort === null;
}

function newChat() {
  running?.abort();
  setRunning(null);
  messages = [];
  openCalls = [];
  byId("log").replaceChildren();
  say("");
  byId("prompt").focus();
}

// ---- The view of the server

const secondsBetweenLooks = 1;
const looksShown = 120;

/** "name{labels}" to value, of Prometheus' text format. */
function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)/.exec(line);
    if (match) samples.set(match[1].replace(/^calandra_/, ""), Number(match[2].replace("Inf", "Infinity")));
  }
  return samples;
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 3 : value < 100 ? 1 : 0 });
}
const percent = (value) => (Number.isFinite(value) ? `${short(value * 100)} %` : "–");
const mebibytes = (bytes) => `${short(bytes / 2 ** 20)} MiB`;

// Each: its name, its value from the samples of now, of the look before and the seconds between, and how that is written.
// One whose samples the server does not have is no number, and is not shown.
const growth = (name) => (now, before) => now.get(name) - before.get(name);
const rate = (name) => (now, before, seconds) => growth(name)(now, before) / seconds;
const gauge = (name) => (now) => now.get(name);
/** Of all samples of a name, whatever their labels. */
const sum = (name) => (samples) =>
  [...samples].reduce((total, [key, value]) => (key.startsWith(`${name}{`) ? total + value : total), 0);
const sumGrowth = (name) => (now, before) => sum(name)(now) - sum(name)(before);
/** Shown once there were drafts: `value` of what was drafted since the look before, 0 if nothing was. */
const ofDrafts = (value) => (now, before) => {
  if (sum("draft_tokens_total")(now) === 0) return NaN;
  return sumGrowth("draft_tokens_total")(now, before) === 0 ? 0 : value(now, before);
};
const accepted = sumGrowth("draft_tokens_accepted_total");
const used = 'pool_blocks{state="used"}', free = 'pool_blocks{state="free"}';
const views = [
  ["Running", gauge("requests_running"), short],
  ["Waiting", gauge("requests_waiting"), short],
  ["Rows of a step", (now, before) => {
    const steps = growth("batch_rows_count")(now, before);
    return steps === 0 ? 0 : growth("batch_rows_sum")(now, before) / steps;
  }, short],
  ["Tokens/s made", rate("generated_tokens_total"), short],
  ["Drafts accepted", ofDrafts((now, before) => accepted(now, before) / sumGrowth("draft_tokens_total")(now, before)), percent],
  ["Tokens a step", ofDrafts((now, before) => 1 + accepted(now, before) / sumGrowth("draft_steps_total")(now, before)), short],
  ["Tokens/s of prompts", rate('computed_tokens_total{kind="prefill"}'), short],
  ["Memory", (now) => now.get(used) / (now.get(used) + now.get(free)), (share, now) =>
    `${percent(share)} of ${mebibytes((now.get(used) + now.get(free)) * now.get("pool_block_bytes"))}`],
  ["Blocks used", gauge(used), short],
  ["Preempted", gauge("requests_preempted"), short],
];

class Plot {
  values = [];

  constructor([name, value, write]) {
    this.value = value;
    this.write = write;
    this.figure = clone("plot-template");
    this.figure.querySelector(".name").textContent = name;
    this.figure.hidden = true;
    byId("plots").append(this.figure);
  }

  add(now, before, seconds) {
    const value = this.value(now, before, seconds);
    this.figure.hidden = !Number.isFinite(value);
    if (this.figure.hidden) return;
    this.values = [...this.values, value].slice(-looksShown);
    this.figure.querySelector("output").textContent = this.write(value, now);
    const top = Math.max(...this.values, 1e-9);
    const points = this.values.map((one, i) => {
      const x = 120 - (this.values.length - 1 - i) * (120 / (looksShown - 1));
      return `${x.toFixed(1)},${(31 - 29 * (one / top)).toFixed(1)}`;
    });
    this.figure.querySelector("polyline").setAttribute("points", points.join(" "));
  }
}

const plots = views.map((view) => new Plot(view));
let before = null; // {samples, time} of the last look
let timer = null;

async function look() {
  if (!byId("live").open || byId("side").hidden || document.hidden) return;
  try {
    showSamples(parseMetrics(await (await ask("metrics")).text()));
    if (byId("cache").open) showCache(await (await ask("cache")).json());
  } catch (error) {
    if (error.status === 404 || error.status === 401) byId("live").hidden = true;
    before = null;
  }
}

function showSamples(samples) {
  const time = performance.now();
  if (before) for (const plot of plots) plot.add(samples, before.samples, (time - before.time) / 1000);
  before = { samples, time };
  const rows = [...samples].filter(([name]) => !/_bucket(\{|$)/.test(name)).map(([name, value]) => {
    const row = document.createElement("tr");
    row.append(document.createElement("th"), document.createElement("td"));
    row.firstChild.textContent = name;
    row.lastChild.textContent = short(value);
    return row;
  });
  byId("numbers").replaceChildren(...rows);
}

/** A line for each place that requests can go on from, under the one before it on its path. */
function showCache({ spaces, left_off }) {
  const lines = [];
  for (const { boundaries } of spaces) {
    const add = (before, indent) => {
      for (const { id, position, kind, hits, bytes, idle_seconds } of boundaries.filter(({ parent }) => parent === before)) {
        lines.push(`${indent}${position} ${kind}, ${hits} hits, ${mebibytes(bytes)}, ${short(idle_seconds)} s ago`);
        add(id, `${indent}  `);
      }
    };
    add(null, "");
    lines.push("");
  }
  if (left_off > 0) lines.push(`and ${left_off} that are worth less`);
  byId("tree").textContent = lines.join("\n").trim() || "empty";
}

/** One look after another, as long as somebody looks. */
async function watch() {
  clearTimeout(timer);
  await look();
  clearTimeout(timer);
  if (byId("live").open && !byId("live").hidden) timer = setTimeout(watch, secondsBetweenLooks * 1000);
}

// ---- Beginning

async function meetServer() {
  try {
    const models = await (await ask("v1/models")).json();
    byId("model").textContent = models.data[0].id;
    document.title = `${models.data[0].id} · Calandra`;
    byId("live").hidden = !(await hasMetrics());
  } catch (error) {
    say(error.message, true);
  }
}

async function hasMetrics() {
  try {
    await ask("metrics");
    return true;
  } catch {
    return false;
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) {
    event.preventDefault();
    running.abort();
  }
});
byId("prompt").addEventListener("keydown", (event) => {
  // An Enter that ends the composition of a character is part of typing.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  running?.abort();
  byId("prompt").focus();
});
byId("new").addEventListener("click", newChat);
byId("toggle").addEventListener("click", () => showSide(byId("side").hidden));
byId("live").addEventListener("toggle", watch);
byId("log").addEventListener("scroll", noteScroll);

restoreSettings();
showSide(matchMedia("(min-width: 64rem)").matches);
meetServer();
