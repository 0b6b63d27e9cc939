// The dashboard: /v1/stats once a second while it is shown.
import * as api from "./api.js";

const KEPT = 120;  // seconds of the charts
const SVG = "http://www.w3.org/2000/svg";

const make = (name, className, ...children) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
};

const number = (value, digits = 0) => (Number.isFinite(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "-");
const percent = (share) => (Number.isFinite(share) ? number(100 * share, 1) + " %" : "-");
const seconds = (value) => (!Number.isFinite(value) ? "-" : value < 1 ? number(1000 * value, 1) + " ms" : number(value, 2) + " s");

export function bytes(count) {
  if (!Number.isFinite(count)) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    ++unit;
  }
  return number(count, unit ? 2 : 0) + " " + units[unit];
}

function duration(total) {
  const s = Math.floor(total);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
}

const trio = (p) => (p?.count ? `${seconds(p.p50)} / ${seconds(p.p90)} / ${seconds(p.p99)}` : "-");

// Label and text of every tile; what the server does not say is left out.
export function tiles(stats) {
  const all = [
    ["Running", stats.requests && number(stats.requests.running)],
    ["Waiting", stats.requests && number(stats.requests.waiting)],
    ["Prompt tok/s", stats.rates && number(stats.rates.prompt_tokens_per_second, 1)],
    ["Answer tok/s", stats.rates && number(stats.rates.generation_tokens_per_second, 1)],
    ["First token p50 / p90 / p99", stats.latency_seconds && trio(stats.latency_seconds.first_token)],
    ["Between tokens p50 / p90 / p99", stats.latency_seconds && trio(stats.latency_seconds.inter_token)],
    ["KV pages in use", stats.kv && `${percent(stats.kv.use)} of ${number(stats.kv.pages)}`],
    ["State slots taken", stats.state && `${number(stats.state.slots_taken)} of ${number(stats.state.slots)}`],
    ["Prefix hit rate", stats.prefix_cache && percent(stats.prefix_cache.hit_rate)],
    ["Prefix states, device + host", stats.prefix_cache && `${number(stats.prefix_cache.device_entries)} + ${number(stats.prefix_cache.host_entries)}`],
    ["Replayed turns", stats.replay && number(stats.replay.hits)],
    ["Finished, failed, refused", stats.requests && `${number(stats.requests.finished)}, ${number(stats.requests.failed)}, ${number(stats.requests.refused)}`],
    ["Up", duration(stats.uptime_seconds)],
    ["Version, device", [stats.version, stats.device].filter(Boolean).join(", ")],
  ];
  return all.filter(([, text]) => text);
}

function chart(title, values) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const top = Math.max(1e-9, ...values);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", values.map((value, i) => `${KEPT - values.length + i},${97 - 92 * value / top}`).join(" "));
  svg.append(line);
  const label = `${title}: ${number(values.at(-1), 1)}, at most ${number(Math.max(...values), 1)} in the last two minutes`;
  svg.setAttribute("aria-label", label);
  return make("div", "", make("span", "legend", label), svg);
}

function bar(parts) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  const node = make("div", "bar");
  for (const [name, value] of parts) {
    const piece = make("i", name);
    piece.style.width = total > 0 ? `${100 * value / total}%` : "0";
    piece.title = `${name}: ${seconds(value)}`;
    node.append(piece);
  }
  return node;
}

function requestRow(request) {
  const s = request.seconds;
  const cells = [request.request_id, request.route, number(request.prompt_tokens), number(request.cached_tokens), number(request.completion_tokens),
    request.error ?? request.finish_reasons.join(", "), seconds(s.total)];
  const row = make("tr", "", ...cells.map((text) => make("td", "", String(text))));
  row.append(make("td", "", bar([["queue", s.queue], ["prefill", s.prefill], ["decode", s.decode]])));
  return row;
}

export class Dashboard {
  constructor() {
    this.rates = { "Answer tokens a second": [], "Prompt tokens a second": [], "Requests running": [] };
    this.timer = null;
    this.onStats = () => {};
  }

  // The page asks all the time, seldom while nobody looks at the numbers.
  start(interval) {
    this.stop();
    const turn = async () => {
      const mine = this.timer;
      try {
        const stats = await api.stats();
        this.take(stats);
        this.onStats(stats, null);
      } catch (error) {
        this.onStats(null, error);
      }
      if (this.timer === mine) this.timer = setTimeout(turn, document.hidden ? 10000 : interval);
    };
    this.timer = setTimeout(turn, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  take(stats) {
    const now = { "Answer tokens a second": stats.rates?.generation_tokens_per_second, "Prompt tokens a second": stats.rates?.prompt_tokens_per_second,
      "Requests running": stats.requests?.running };
    for (const [name, values] of Object.entries(this.rates)) {
      values.push(now[name] ?? 0);
      if (values.length > KEPT) values.shift();
    }
    if (!document.getElementById("view-board").hidden) this.draw(stats);
  }

  draw(stats) {
    const put = (id, nodes) => document.getElementById(id).replaceChildren(...nodes);
    put("tiles", tiles(stats).map(([label, text]) => make("div", "tile", make("span", "", label), make("b", "", text))));
    put("charts", Object.entries(this.rates).map(([name, values]) => chart(name, values)));
    const memory = stats.memory ?? [];
    const total = memory.reduce((sum, row) => sum + row.bytes, 0);
    put("memory", memory.map((row) => {
      const piece = make("i", "decode");
      piece.style.width = `${100 * row.bytes / total}%`;
      return make("div", "", `${row.pool}: ${row.name}, ${bytes(row.bytes)}`, make("div", "bar", piece));
    }));
    document.querySelector("#recent tbody").replaceChildren(...(stats.recent ?? []).map(requestRow));
  }
}
