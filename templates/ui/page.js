// Liveness, forms that answer while they are filled in, copying, local times. Every page works without it.
"use strict";

const policy = window.trustedTypes ? trustedTypes.createPolicy("page", { createHTML: (html) => html }) : null;
const trusted = (html) => (policy ? policy.createHTML(html) : html);

// Replaces an element's content, and leaves where the reader is: focus, selection, scrolling, opened details.
function replace(id, html) {
  const target = document.getElementById(id);
  if (!target) return;
  const active = document.activeElement;
  const held = active && active !== target && target.contains(active) ? active : null;
  if (held && held.matches("input, select, textarea")) return;
  const selected = document.getSelection();
  if (!selected.isCollapsed && target.contains(selected.anchorNode)) return;
  const key = held && (held.id ? `#${CSS.escape(held.id)}` : held.getAttribute("href") ? `[href="${CSS.escape(held.getAttribute("href"))}"]` : null);
  const opened = new Map([...target.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const scrolled = new Map([...target.querySelectorAll("[id]")].filter((each) => each.scrollTop || each.scrollLeft).map((each) => [each.id, [each.scrollTop, each.scrollLeft]]));
  target.innerHTML = trusted(html);
  for (const [name, open] of opened) { const each = document.getElementById(name); if (each) each.open = open; }
  for (const [name, [top, left]] of scrolled) { const each = document.getElementById(name); if (each) { each.scrollTop = top; each.scrollLeft = left; } }
  if (key) { const again = target.querySelector(key); if (again) again.focus({ preventScroll: true }); }
  localTimes(target);
}

// A browser allows six connections to a server: a hidden tab gives its own back.
let source = null;
let address = document.body.dataset.live;
const connection = document.getElementById("connection");
const LOST = "connection lost, trying again", GONE = "no longer there: it may have been removed";
const SIGNED_OUT = "signed out: open the address that recipes ui prints";
function tell(words) { connection.textContent = words; connection.hidden = !words; }
function connect() {
  if (source) source.close();
  source = null;
  if (!address || document.hidden) return;
  source = new EventSource(address);
  source.onopen = () => tell("");
  source.onerror = async () => {
    if (!source || source.readyState !== EventSource.CLOSED) return tell(LOST);
    const asked = new AbortController();  // the reason of a refusal, which a source does not tell
    const reply = await fetch(address, { signal: asked.signal }).catch(() => null);
    tell({ 401: SIGNED_OUT, 404: GONE }[reply && reply.status] || LOST);
    asked.abort();
    setTimeout(connect, 2000);
  };
  source.addEventListener("part", (event) => { const { id, html } = JSON.parse(event.data); replace(id, html); });
  source.addEventListener("gone", () => tell(GONE));
  source.addEventListener("fault", () => tell("cannot be followed now: one of its files cannot be read"));
  source.addEventListener("back", () => tell(""));
}
document.addEventListener("visibilitychange", connect);
window.addEventListener("pagehide", () => { if (source) source.close(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

let at = location.search;
// A form with data-part shows its answer while it is filled in; its state is in the address.
for (const form of document.querySelectorAll("form[data-part]")) {
  let timer = 0, asked = null, isFirst = true;
  const target = document.getElementById(form.dataset.into);
  // What is launched is what the fields show: until the answer to them is here, nothing can be.
  const hold = (isHeld) => { for (const each of target.querySelectorAll("form[method=post] button")) each.disabled = isHeld; };
  const answer = async () => {
    const filled = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const query = filled.toString();
    history[isFirst ? "pushState" : "replaceState"](null, "", query ? `?${query}` : location.pathname);
    isFirst = false;
    at = location.search;
    if (form.dataset.live) { address = `${form.dataset.live}?${query}`; connect(); }
    if (asked) asked.abort();
    asked = new AbortController();
    target.setAttribute("aria-busy", "true");
    try {
      const reply = await fetch(`${form.dataset.part}?${query}`, { signal: asked.signal });
      if (reply.ok) replace(form.dataset.into, await reply.text());
      else tell(reply.status === 401 ? SIGNED_OUT : "the server could not answer");
      target.removeAttribute("aria-busy");
    } catch (error) {
      if (error.name === "AbortError") return;
      target.removeAttribute("aria-busy");
      tell(LOST);
    }
  };
  form.addEventListener("input", () => { hold(true); clearTimeout(timer); timer = setTimeout(answer, 150); });
  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter.formMethod === "post") return;
    event.preventDefault(); clearTimeout(timer); answer();
  });
}
// A link within the page is a state of its own, too; only another query is another page.
window.addEventListener("popstate", () => { if (location.search !== at) location.reload(); });

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy), said = button.textContent;
  try {
    await navigator.clipboard.writeText(text.textContent.trim());
    button.textContent = "copied";
  } catch {  // refused: it is selected instead
    document.getSelection().selectAllChildren(text);
    button.textContent = "press Ctrl+C";
  }
  setTimeout(() => { button.textContent = said; }, 1500);
});

// An action asks first: here, or without the script by a page of the server. It is sent once, however often it is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target, button = event.submitter;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  const said = (button && button.dataset.confirm) || form.dataset.confirm;
  if (said && !form.elements.confirmed) {
    if (!window.confirm(said.replace("{nodes}", () => `${form.elements.nodes.value} node${form.elements.nodes.value === "1" ? "" : "s"}`))) { event.preventDefault(); return; }
    const answered = document.createElement("input");
    answered.type = "hidden"; answered.name = "confirmed"; answered.value = "1";
    form.append(answered);
    setTimeout(() => answered.remove(), 0);  // the next one asks again
  }
  form.dataset.sent = "1";
  if (button) setTimeout(() => { button.disabled = true; button.append(" …"); }, 0);  // its own value is sent before
});
window.addEventListener("pageshow", (event) => {  // the way back leads to forms that may be sent again
  if (event.persisted && document.querySelector("form[data-sent]")) location.reload();
});

const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const shownInFull = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]:not([title])")) {
    each.title = each.textContent;
    each.textContent = ("seconds" in each.dataset ? shownInFull : shown).format(new Date(each.dateTime));
  }
}
localTimes(document);
connect();

// While its box is ticked, a log grows: new lines are added at its end, which stays in view if it was.
const follow = document.getElementById("follow");
const MOST_LINES = 5000;
const toEnd = (box) => { box.scrollTop = box.scrollHeight; };
function addLines(part, html) {
  const read = document.createElement("template");
  read.innerHTML = trusted(html);
  const news = read.content.querySelector(".log-part");
  const box = part.querySelector(".log"), list = box.querySelector("ol");
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  const lines = [...news.querySelectorAll("li")];
  for (const line of lines) {  // a line that was not complete comes again, longer
    const earlier = line.id && document.getElementById(line.id);
    if (!earlier) list.append(line);
    else if (earlier.textContent !== line.textContent) earlier.replaceWith(line);
  }
  while (list.children.length > MOST_LINES) list.firstElementChild.remove();
  if (lines.length && part.querySelector(".empty")) part.querySelector(".empty").remove();
  if (news.dataset.follow) part.dataset.follow = news.dataset.follow;
  else delete part.dataset.follow;
  if (isAtEnd) toEnd(box);
  return "more" in news.dataset;
}
async function followLog() {
  const part = document.querySelector("[data-follow], [data-refresh]");
  document.getElementById("follow-box").hidden = !part;
  let pause = 1000;
  if (part && follow.checked && !document.hidden) {
    try {
      const reply = await fetch(part.dataset.follow || part.dataset.refresh);
      const html = reply.ok ? await reply.text() : "";
      if (html && part.isConnected && follow.checked) {
        if (!part.dataset.follow) { replace("log", html); pause = 2000; }
        else if (addLines(part, html)) pause = 0;
      }
    } catch { pause = 3000; }  // the server may be starting again
  }
  setTimeout(followLog, pause);
}
const showEnd = () => document.querySelectorAll(".log-part[data-end]:not([data-refresh]) .log").forEach(toEnd);
if (follow) {
  new MutationObserver(showEnd).observe(document.getElementById("log"), { childList: true });
  showEnd();
  followLog();
}
