#include "reports/html_parts.h"

namespace shardproof {

const std::string_view kHtmlStyle = R"(:root {
  color-scheme: light dark;
  --page: #ffffff; --raised: #f5f7f9; --line: #d5dae0; --text: #1b2027; --quiet: #56606b; --link: #0b57a4;
  --good: #0e5a27; --good-page: #dcf5e2; --bad: #99121f; --bad-page: #ffe6e6; --faint: #47505a; --faint-page: #e9edf1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11161c; --raised: #1a2129; --line: #333d48; --text: #e4e8ec; --quiet: #a0abb6; --link: #7ab8f5;
    --good: #8ae0a5; --good-page: #12351f; --bad: #ffb0ae; --bad-page: #4a1719; --faint: #c3ccd4; --faint-page: #29323b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
header, main { max-width: 100rem; margin: 0 auto; padding: 0 1.5rem; }
main { padding-bottom: 3rem; }
h1 { margin: 1.5rem 0 .75rem; font-size: 1.05rem; font-weight: 600; color: var(--quiet); }
h2 { margin: 2rem 0 .6rem; font-size: 1.1rem; }
p, li, dd { overflow-wrap: anywhere; max-width: 60rem; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.lines { white-space: pre-line; }
.verdict { max-width: none; margin: 0 0 1.25rem; padding: .9rem 1.1rem; border-radius: .5rem; font-size: 1.2rem;
  line-height: 1.4; font-weight: 600; border-left: .4rem solid currentColor; background: var(--faint-page); }
.good { color: var(--good); background: var(--good-page); }
.bad { color: var(--bad); background: var(--bad-page); }
.faint { color: var(--faint); background: var(--faint-page); }
.word { display: inline-block; padding: 0 .4rem; border-radius: .3rem; font-size: .9em; font-weight: 600; }
a .word { text-decoration: underline; text-underline-offset: .15em; }
nav ul { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0 0 1.25rem; padding: 0; list-style: none; }
dl { margin: 0; display: grid; gap: .1rem; }
dl > div { display: grid; grid-template-columns: 9rem 1fr; gap: 1rem; }
dt { color: var(--quiet); overflow-wrap: anywhere; }
dd { margin: 0; }
ul { margin: .4rem 0; padding-left: 1.25rem; }
.items { list-style: none; padding: 0; display: grid; gap: .75rem; }
.items > li { max-width: none; padding: .7rem 1rem; border: 1px solid var(--line); border-radius: .5rem;
  scroll-margin-top: 1rem; }
.items > li:target { border-color: var(--link); }
.items p, .items dl { margin: 0 0 .4rem; }
.items > li > :last-child { margin-bottom: 0; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { margin: .5rem 0; padding: .8rem 1rem; overflow: auto; background: var(--raised); border: 1px solid var(--line);
  border-radius: .5rem; }
.frame { overflow: auto; max-height: 80vh; border: 1px solid var(--line); border-radius: .5rem; margin: .6rem 0; }
table { width: 100%; border-collapse: separate; border-spacing: 0; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .28rem .5rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
td.long { max-width: none; min-width: 16rem; white-space: normal; }
details { margin: .3rem 0; }
summary { cursor: pointer; }
details > ul { margin-bottom: .5rem; }
tbody tr:last-child td { border-bottom: 0; }
th { position: sticky; top: 0; z-index: 1; background: var(--raised); font-weight: 600; }
.number { text-align: right; }
th button { all: unset; cursor: pointer; white-space: nowrap; }
th button:focus-visible { outline: 2px solid var(--link); }
th button::after { content: "\2195"; padding-left: .2rem; font-weight: 400; color: var(--quiet); }
th[aria-sort="ascending"] button::after { content: "\2191"; color: var(--text); }
th[aria-sort="descending"] button::after { content: "\2193"; color: var(--text); }
fieldset { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; align-items: center; margin: .6rem 0; padding: 0;
  border: 0; }
legend { float: left; padding: 0; margin-right: .2rem; color: var(--quiet); }
label { display: inline-flex; gap: .35rem; align-items: center; }
input { accent-color: var(--link); font: inherit; }
input[type="search"] { width: 13rem; padding: .15rem .5rem; color: inherit; background: var(--page);
  border: 1px solid var(--quiet); border-radius: .3rem; }
output { color: var(--quiet); }
@media (max-width: 40rem) {
  header, main { padding-left: .8rem; padding-right: .8rem; }
  .verdict { font-size: 1.05rem; padding: .7rem .8rem; }
  dl > div { grid-template-columns: 1fr; gap: 0; margin-bottom: .3rem; }
  .items > li { padding: .6rem .7rem; }
}
@media print {
  .frame { max-height: none; overflow: visible; }
  fieldset { display: none; }
  th { position: static; }
}
)";

const std::string_view kHtmlScript = R"('use strict';
// Without this script the page has the same texts; it sorts the rows of tables, and chooses among them.
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column], text = cell.textContent;
    const number = Number('number' in cell.dataset ? cell.dataset.number : text || NaN);
    return {text, number: cell.dataset.number === 'inf' ? Infinity : number};
  };
  const compare = (a, b) => {
    if (!a.text || !b.text) return NaN;
    if (!isNaN(a.number) && !isNaN(b.number)) return a.number < b.number ? -1 : a.number > b.number ? 1 : 0;
    return a.text.localeCompare(b.text, 'en', {numeric: true});
  };
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const next = {ascending: 'descending', descending: ''}[head.getAttribute('aria-sort') || ''] ?? 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      if (next) head.setAttribute('aria-sort', next);
      const sign = next === 'descending' ? -1 : 1;
      // What has nothing to be sorted by stays last.
      const sorted = rows.map((row, place) => ({row, place, key: key(row, column)})).sort((a, b) =>
        (!a.key.text - !b.key.text) || sign * (compare(a.key, b.key) || 0) || a.place - b.place);
      for (const {row} of next ? sorted : rows.map(row => ({row}))) body.append(row);
    });
  });
  if (!('filter' in table.dataset)) continue;
  const counts = new Map();
  const word = row => row.cells[0].textContent;
  for (const row of rows) counts.set(word(row), (counts.get(word(row)) || 0) + 1);
  const chosen = new Set(counts.keys());
  const fields = document.createElement('fieldset'), legend = document.createElement('legend');
  legend.textContent = 'Show';
  fields.append(legend);
  const seen = document.createElement('output'), search = document.createElement('input');
  const show = () => {
    let shown = 0;
    const wanted = search.value.toLowerCase();
    for (const row of rows) {
      row.hidden = !chosen.has(word(row)) || !row.textContent.toLowerCase().includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    seen.textContent = `${shown} of ${rows.length} rows`;
  };
  for (const [text, count] of counts) {
    const label = document.createElement('label'), box = document.createElement('input');
    box.type = 'checkbox';
    box.checked = true;
    box.addEventListener('change', () => { box.checked ? chosen.add(text) : chosen.delete(text); show(); });
    label.append(box, `${text} (${count})`);
    fields.append(label);
  }
  search.type = 'search';
  search.placeholder = 'with this text';
  search.setAttribute('aria-label', 'Show rows with this text');
  search.addEventListener('input', show);
  fields.append(search, seen);
  table.parentElement.before(fields);
  show();
}
)";

}  // namespace shardproof
