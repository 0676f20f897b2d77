"""The style sheet of `report.html`: one accent for what earns reward, grey for the rest, light and dark."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --sunk: #f1f3f5; --ink: #1a1f24; --soft: #57606a; --faint: #8b949e;
  --rule: #e1e5e9; --accent: #0f766e; --wash: #e9f5f3; --bad: #b4451f; --bad-wash: #fbeee9;
  --c3: #0f766e; --c2: #56aaa0; --c1: #b3dad4; --c0: #d8dce1; --on3: #ffffff; --on2: #06211e; --on1: #0b3b36;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1216; --card: #161b21; --sunk: #0f1419; --ink: #e4e8ec; --soft: #9aa5b1; --faint: #6e7883;
    --rule: #29313a; --accent: #4fd1c1; --wash: #10302d; --bad: #f08a62; --bad-wash: #33201a;
    --c3: #4fd1c1; --c2: #2f9d91; --c1: #25695f; --c0: #333c46; --on3: #04211e; --on2: #f0fffd; --on1: #c9efe9;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; letter-spacing: -.01em; margin: 52px 0 14px; }
p { margin: 0 0 10px; }
.eyebrow { color: var(--accent); font-size: 12px; font-weight: 600; letter-spacing: .08em;
  text-transform: uppercase; margin: 0 0 6px; }
.soft { color: var(--soft); } .note { color: var(--soft); font-size: 13.5px; max-width: 72ch; }
.facts + .note { margin-top: 10px; }
code, pre, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }

.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1px; margin: 26px 0 0;
  padding: 0; overflow: hidden; background: var(--rule); }
.facts > div { background: var(--card); padding: 14px 16px; }
.facts dt { color: var(--soft); font-size: 12.5px; }
.facts dd { margin: 2px 0 0; font-size: 21px; font-weight: 600; letter-spacing: -.01em; line-height: 1.3;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts dd small { font-size: 13px; font-weight: 400; color: var(--soft); letter-spacing: 0; }

.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 14px; }
.chart { display: flex; flex-direction: column; margin: 0; padding: 12px 12px 6px;
  background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; }
.chart figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 12px;
  font-size: 13.5px;
  padding: 0 4px 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 12px; color: var(--soft); font-size: 12.5px;
  font-variant-numeric: tabular-nums; }
.key b { color: var(--ink); } .key i { display: inline-block; width: 10px; height: 3px; border-radius: 2px;
  vertical-align: middle; background: currentColor; }
.chart svg { display: block; width: 100%; height: auto; margin-top: auto; overflow: visible; }
.s1 { color: var(--c1); } .s2 { color: var(--c2); } .s3 { color: var(--c3); } .sb { color: var(--bad); }
.sg { color: var(--faint); }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke-width: 1; opacity: .3; } .dot { fill: currentColor; }
.grid { stroke: var(--rule); stroke-width: 1; } .tick { fill: var(--faint); font-size: 10.5px; }
.hover { fill: transparent; } .hover:hover { fill: var(--faint); fill-opacity: .14; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 9px 16px; border-top: 1px solid var(--rule); }
thead th { border-top: 0; color: var(--soft); font-size: 12.5px; font-weight: 500; }
th:first-child, td:first-child { text-align: left; } tbody th { font-weight: 500; }
.settings { margin-top: 14px; } .settings td { text-align: left; overflow-wrap: anywhere; }
.settings td, .settings th { padding: 5px 16px; font-size: 13px; vertical-align: top; }

summary { cursor: pointer; list-style: none; } summary::-webkit-details-marker { display: none; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; border-radius: 10px; }
.plain > summary { padding: 10px 16px; color: var(--soft); font-size: 13.5px; }
.plain > summary::before, .sample > summary::before, .fold > summary::before { content: "\\25B8";
  color: var(--faint);
  display: inline-block; width: 1.1em; }
details[open] > summary::before { content: "\\25BE"; }

.group { margin: 0 0 26px; padding: 22px 24px 10px; }
.question { font-size: 18px; line-height: 1.5; max-width: 68ch; margin: 4px 0 6px; overflow-wrap: anywhere; }
.key-row { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft);
  margin: 14px 0 8px; align-items: center; }
.sample { border-top: 1px solid var(--rule); margin: 0 -24px; }
.sample > summary { display: grid; align-items: center; gap: 4px 16px; padding: 10px 24px; font-size: 14px;
  grid-template-columns: 1.1em 5.2em minmax(150px, 1fr) 8.6em 10em minmax(60px, 150px) 5.5em; }
.sample > summary:hover { background: var(--sunk); }
.sample > summary .num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.num small { color: var(--soft); font-size: 12px; }
.right { color: var(--accent); font-weight: 600; } .wrong { color: var(--bad); }
.dots { display: flex; flex-wrap: wrap; gap: 3px; }
.dots i, .swatch { width: 12px; height: 12px; border-radius: 3px; display: inline-block; }
.st3 { background: var(--c3); color: var(--on3); } .st2 { background: var(--c2); color: var(--on2); }
.st1 { background: var(--c1); color: var(--on1); }
.st0 { background: transparent; color: var(--soft); box-shadow: inset 0 0 0 1.5px var(--c0); }

.inside { padding: 8px 24px 26px; }
.rubrics { list-style: none; margin: 6px 0 22px; padding: 0; max-width: 82ch; }
.rubrics li { display: grid; grid-template-columns: 8.2em 1fr; gap: 12px; padding: 5px 0;
  align-items: baseline; }
.chip { font-size: 12px; border-radius: 5px; padding: 1px 8px; text-align: center; white-space: nowrap; }
.rubrics li span:last-child, .turn { overflow-wrap: anywhere; }
.turn { position: relative; padding: 0 0 18px 40px; max-width: 92ch; }
.turn::before { content: ""; position: absolute; left: 11px; top: 26px; bottom: -2px; width: 1px;
  background: var(--rule); }
.turn:last-child::before { display: none; }
.turn > .n { position: absolute; left: 0; top: 1px; width: 23px; height: 23px; border-radius: 50%;
  font-size: 11px;
  line-height: 23px; text-align: center; color: var(--soft); background: var(--sunk);
  box-shadow: inset 0 0 0 1px var(--rule); font-variant-numeric: tabular-nums; }
.text { white-space: pre-wrap; }
.thought { color: var(--soft); font-style: italic; margin: 0 0 8px; }
.call { display: inline-block; background: var(--wash); color: var(--ink); border-radius: 6px;
  padding: 4px 10px;
  margin: 0 0 6px; white-space: pre-wrap; max-width: 100%; }
.call b { color: var(--accent); }
.observation { background: var(--sunk); border: 1px solid var(--rule); border-radius: 8px; margin: 0 0 10px;
  padding: 8px 12px; font-size: 13px; line-height: 1.5; }
.observation.error { border-color: var(--bad); }
.fold > summary { color: var(--soft); }
.fold[open] > summary { margin-bottom: 6px; }
.answer { background: var(--wash); border-left: 3px solid var(--accent); border-radius: 0 8px 8px 0;
  padding: 10px 16px; }
.warn { background: var(--bad-wash); color: var(--bad); border-radius: 6px; padding: 4px 10px; margin: 0 0 8px;
  display: inline-block; font-size: 13px; }
.label { display: block; font-size: 11.5px; font-weight: 600; color: var(--faint); margin: 0 0 2px; }
footer { color: var(--faint); font-size: 13px; margin-top: 40px; }

@media (max-width: 760px) {
  main { padding: 26px 14px 60px; } h1 { font-size: 24px; } h2 { margin-top: 40px; }
  .facts { grid-template-columns: 1fr 1fr; } .facts dd { font-size: 18px; }
  .group { padding: 16px 16px 8px; } .question { font-size: 16.5px; }
  .sample { margin: 0 -16px; } .inside { padding: 8px 16px 20px; }
  .sample > summary { grid-template-columns: 1.1em auto 1fr; padding: 10px 16px; }
  .sample > summary .num { text-align: left; grid-column: 2; } .sample > summary .num + .num { grid-column: 3; }
  .sample > summary .dots { grid-column: 2 / 4; } .sample > summary .calls { display: none; }
  .turn { padding-left: 32px; } th, td { padding: 8px 10px; }
  .rubrics li { grid-template-columns: 1fr; gap: 3px; } .chip { justify-self: start; }
}
@media print { .sample > summary { break-inside: avoid; } body { background: none; } }
"""
