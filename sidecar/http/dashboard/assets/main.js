// What the daemon tells, event by event, and where on the page it goes.

import { Acceptance } from "./acceptance.js";
import { CacheMap, showTiers } from "./cache.js";
import { byId, percent } from "./dom.js";
import { showMachine } from "./machine.js";
import { Rate, showFacts } from "./rate.js";
import { Past, showRunning } from "./requests.js";
import { showRegimes, Timeline } from "./surplus.js";

const AGAIN_MS = 2000;
const MOST_PAST = 50;

const rate = new Rate();
const timeline = new Timeline();
const acceptance = new Acceptance();
const cacheMap = new CacheMap();
const pastRows = new Past();
let status = null;
let open = [];
let past = [];

function forget() {
  past = [];
  rate.clear();
  timeline.show(past);
  pastRows.clear();
  cacheMap.show({ nodes: [], left_out: 0 });
}

function say(state, text) {
  const place = byId("connection");
  place.dataset.state = state;
  // Said again, a screen reader would read it again.
  if (place.textContent !== text) place.textContent = text;
  document.body.toggleAttribute("data-gone", state === "gone");
}

function onStatus(fresh) {
  if (status !== null && status.pid !== fresh.pid) forget();
  const first = status === null;
  const same = (name) => !first && JSON.stringify(status[name]) === JSON.stringify(fresh[name]);
  const unchanged = same("regimes");
  status = fresh;
  byId("model").textContent = fresh.model?.id ?? fresh.requested_model;
  if (fresh.state === "ready") say("ready", "ready");
  else say("waiting", `${fresh.state}${fresh.detail ? `: ${fresh.detail}` : ""}${fresh.progress === null ? "" : ` ${percent(fresh.progress)}`}`);
  showFacts(fresh);
  showTiers(fresh.cache);
  showMachine(fresh);
  if (!unchanged) {
    showRegimes(fresh.regimes);
    acceptance.show(fresh.regimes);
  }
}

function onEvent(event) {
  if (event.status) onStatus(event.status);
  if (event.ended) {
    const known = new Set(past.map((request) => request.id));
    const fresh = event.ended.filter((request) => !known.has(request.id));
    past = [...past, ...fresh].slice(-MOST_PAST);
    for (const request of fresh) rate.ended(request);
    pastRows.add(fresh);
    timeline.show(past);
  }
  if (event.open) open = event.open;
  if (event.cache) cacheMap.show(event.cache);
  rate.add(event.time, event.committed);
  rate.show(open.length);
  showRunning(open, status);
  document.title = open.length ? `${byId("rate").textContent} tok/s \u00b7 Pillion` : "Pillion";
}

function connect() {
  const source = new EventSource("/dashboard/events");
  const lose = (why) => {
    source.close();
    open = [];
    rate.show(0);
    showRunning(open, null);
    say("gone", why);
    setTimeout(connect, AGAIN_MS);
  };
  source.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.over) lose(`the daemon has ${event.over}; waiting for it`);
    else onEvent(event);
  };
  source.onerror = () => lose("the daemon is gone; waiting for it");
}

forget();
rate.show(0);
connect();
