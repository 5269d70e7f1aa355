// What a machine can find of what shuts people out: names, labels, headings, contrast (WCAG 2.1 AA).
() => {
  const faults = [];
  const shown = (e) => e.getClientRects().length > 0;
  const name = (e) => (e.getAttribute('aria-label') || e.innerText || e.title || e.alt
    || [...(e.labels || [])].map((l) => l.innerText).join(' ') || '').trim();
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\)$|transparent/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  for (const e of document.querySelectorAll('a, button, input, select, textarea, summary'))
    if (shown(e) && !name(e)) faults.push('no name: ' + e.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  ids.filter((id, n) => ids.indexOf(id) !== n).forEach((id) => faults.push('id twice: ' + id));
  if (!document.documentElement.lang) faults.push('no language');
  if (!document.title) faults.push('no title');
  if (document.querySelectorAll('main').length !== 1) faults.push('not one main');
  if (document.querySelectorAll('h1').length !== 1) faults.push('not one h1');
  for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) faults.push('no alt');
  for (const e of document.querySelectorAll('table')) if (!e.querySelector('th')) faults.push('table without th');
  const walk = document.createTreeWalker(document.querySelector('main').parentElement, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !shown(e) || e.closest('svg, script, option, :disabled')) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(style.color), light(back(e))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24;
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) faults.push('contrast: ' + e.outerHTML.slice(0, 120));
  }
  return faults;
}
