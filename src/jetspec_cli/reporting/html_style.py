"""The report page's style and script."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #ffffff; --soft: #5b6570; --line: #d5dae0; --good: #1a7f4b;
  --bad: #c2412d; --accent: #2457c5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14171a; --soft: #a0a9b4; --line: #363c44;
  --good: #4cc38a; --bad: #ff8a73; --accent: #8fb4ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
.statement { font-size: 1.1rem; border-left: 4px solid var(--accent); padding-left: 0.75rem; }
.matrices { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 0 1.5rem; }
.matrices table { min-width: 100%; }
.box { overflow-x: auto; margin: 1rem 0; max-width: 100%; min-width: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
th, td { border: 1px solid var(--line); padding: 0.3rem 0.6rem; text-align: right; white-space: nowrap; }
.wide { grid-column: 1 / -1; } .wide table { min-width: 0; } .heat td { white-space: normal; }
.words td { font-size: 0.8rem; line-height: 1.25; padding: 0.3rem; }
th[scope=row] { text-align: left; font-weight: 600; } thead th { font-weight: 600; }
td.good { background: color-mix(in srgb, var(--good) var(--far), transparent); }
td.bad { background: color-mix(in srgb, var(--bad) var(--far), transparent); }
th button { all: unset; cursor: pointer; }
th button:focus-visible, .box:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: 0.9rem; }
svg { display: block; width: 100%; height: auto; } svg.plot { max-width: 40rem; }
svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); } svg .even { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 6 4; }
svg .front { fill: none; stroke: var(--accent); stroke-width: 1.5; }
svg .pays { fill: var(--good); } svg .loses { fill: var(--bad); } svg .unclear { fill: var(--soft); }
svg .predicted { fill: none; stroke-width: 1.5; } svg .pays.predicted { stroke: var(--good); }
svg .loses.predicted { stroke: var(--bad); }
svg.bars rect { fill: var(--accent); } details { margin: 0.5rem 0; }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const isUp = heading.getAttribute("aria-sort") !== "ascending";
    headings.forEach((other) => other.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }) ||  0);
    if (rows.every((row) => row.cells[column].dataset.sort !== undefined || row.cells[column].textContent === "-")) {
      const number = (row) => Number(row.cells[column].dataset.sort ?? NaN);
      rows.sort((a, b) => (isNaN(number(a)) - isNaN(number(b))) || number(a) - number(b));
    }
    if (!isUp) rows.reverse();
    rows.forEach((row) => table.tBodies[0].append(row));
  }));
}
"""
