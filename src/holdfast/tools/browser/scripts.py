"""What is run inside of a page, in a world of its own: what the page made of its own objects does not reach it.

A page's text is read as a person would see it. What can be clicked or filled in has a number, which counts until the
page is read again or left.
"""

TEXT_CHARS_MAX = 400_000
NODES_MAX = 60_000
REFS_MAX = 400

_READ = r"""
(() => {
  const CHARS = %(chars)d, NODES = %(nodes)d, REFS = %(refs)d;
  const refs = globalThis.holdfastRefs = [];
  const BLOCKS = new Set(('ADDRESS ARTICLE ASIDE BLOCKQUOTE BR DD DIV DL DT FIELDSET FIGURE FOOTER FORM H1 H2 H3 H4 '
    + 'H5 H6 HEADER HR LABEL LI MAIN NAV OL OPTION P PRE SECTION TABLE TR UL').split(' '));
  const SKIPPED = new Set('SCRIPT STYLE NOSCRIPT TEMPLATE SVG svg HEAD CANVAS AUDIO VIDEO OBJECT EMBED'.split(' '));
  const HEADS = {H1: '# ', H2: '## ', H3: '### ', H4: '#### ', H5: '##### ', H6: '###### '};
  const out = [], told = [];
  let chars = 0, nodes = 0, cut = false, pre = 0;

  const say = text => {
    if (chars >= CHARS) { cut = true; return; }
    out.push(text);
    chars += text.length;
  };
  const short = (text, most) => {
    const line = String(text ?? '').slice(0, 4 * most).replace(/\s+/g, ' ').trim();
    return line.length > most ? line.slice(0, most - 1) + '\u2026' : line;
  };
  const attribute = (el, ...names) => names.map(name => el.getAttribute(name)).find(value => value) || '';
  const named = el => {
    const label = el.labels && el.labels[0] ? el.labels[0].textContent.trim() : '';
    return short(attribute(el, 'aria-label') || label || attribute(el, 'placeholder', 'title', 'name', 'alt'), 80);
  };
  const hidden = el => {
    const style = getComputedStyle(el);
    return style.display === 'none' || style.visibility !== 'visible' || Number(style.opacity) === 0;
  };
  const number = (el, words) => {
    if (refs.length >= REFS) { cut = true; return ''; }
    refs.push(el);
    told.push(`[${refs.length}] ${words}`);
    return `[${refs.length}] `;
  };
  const field = el => {
    const type = (el.type || 'text').toLowerCase(), name = named(el);
    if (type === 'hidden') return;
    if (el.tagName === 'SELECT') {
      const options = [...el.options].slice(0, 20).map(one => short(one.textContent, 40)).join(' | ');
      const chosen = short(el.selectedOptions[0] && el.selectedOptions[0].textContent, 60);
      say(number(el, `choice "${name}": ${options}`) + `(choice "${name}": ${chosen}) `);
    } else if (type === 'checkbox' || type === 'radio') {
      say(number(el, `${type} "${name}"`) + `(${type} "${name}": ${el.checked ? 'on' : 'off'}) `);
    } else if (['submit', 'button', 'reset', 'image'].includes(type)) {
      const words = short(el.value, 80) || name || type;
      say(number(el, `button "${words}"`) + `(button "${words}") `);
    } else if (type === 'file') {
      say('(a file cannot be chosen here) ');
    } else {
      const value = type === 'password' ? (el.value ? '\u2022\u2022\u2022' : '') : short(el.value, 200);
      const kind = el.tagName === 'TEXTAREA' ? 'text' : type;
      say(number(el, `field "${name}" (${kind})`) + `(field "${name}": "${value}") `);
    }
  };
  const numbered = el => {
    const tag = el.tagName;
    if (tag === 'A' && el.href) return number(el, `link ${short(el.href, 200)}`);
    if (tag === 'BUTTON' || tag === 'SUMMARY' || el.getAttribute('role') === 'button' || el.hasAttribute('onclick')) {
      return number(el, `button "${short(el.textContent, 80) || named(el)}"`);
    }
    const around = el.parentElement;
    const edited = el.isContentEditable && !(around && around.isContentEditable);
    return edited ? number(el, `field "${named(el)}" (text)`) : '';
  };
  const walk = (node, depth) => {
    if (++nodes > NODES || chars >= CHARS || depth > 200) { cut = true; return; }
    if (node.nodeType === 3) {
      const text = pre ? node.data : node.data.replace(/\s+/g, ' ');
      if (text) say(text.slice(0, CHARS));
      return;
    }
    const tag = node.tagName;
    if (node.nodeType !== 1 || SKIPPED.has(tag)) return;
    if (tag === 'BR' || tag === 'HR') { say('\n'); return; }
    if (hidden(node)) return;
    if (tag === 'INPUT' || tag === 'TEXTAREA' || tag === 'SELECT') { field(node); return; }
    if (tag === 'IFRAME' || tag === 'FRAME') {
      say(`\n(another page is shown here: ${short(node.src, 200)})\n`);
      return;
    }
    if (tag === 'IMG') {
      if (node.alt) say(`(picture: ${short(node.alt, 120)}) `);
      return;
    }
    const block = BLOCKS.has(tag);
    if (block) say('\n');
    say((HEADS[tag] ? '\n' + HEADS[tag] : '') + (tag === 'LI' ? '- ' : '') + numbered(node));
    pre += tag === 'PRE';
    for (const child of (node.shadowRoot || node).childNodes) walk(child, depth + 1);
    pre -= tag === 'PRE';
    if (tag === 'TD' || tag === 'TH') say(' | ');
    if (block) say('\n');
  };
  if (document.body) walk(document.body, 0);
  const lines = out.join('').split('\n').map(line => line.trimEnd().replace(/^ (?! )/, ''));
  const text = lines.join('\n').replace(/\n{3,}/g, '\n\n').trim();
  return {url: short(location.href, 2000), title: short(document.title, 300), text, refs: told, cut};
})()
"""

READ = _READ % {"chars": TEXT_CHARS_MAX, "nodes": NODES_MAX, "refs": REFS_MAX}

# Where to click; a window of its own is none here, so links and forms lead on in this one.
POINT = r"""
(number => {
  const el = (globalThis.holdfastRefs || [])[number - 1];
  if (!el || !el.isConnected) return {problem: 'gone'};
  const link = el.closest('a');
  if (link && link.href && !/^(https?|about|data|blob|javascript):/.test(link.href)) return {problem: 'program'};
  for (const one of [link, el.closest('form')]) if (one && one.target) one.target = '_self';
  if (el.formTarget) el.formTarget = '_self';
  el.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
  const box = [...el.getClientRects()].find(each => each.width > 0 && each.height > 0);
  if (!box) return {x: 0, y: 0, hit: false};
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const at = document.elementFromPoint(x, y);
  return {x, y, hit: !!at && (at === el || el.contains(at))};
})(%d)
"""

CLICK = "(globalThis.holdfastRefs || [])[%d - 1].click()"

# What is in it is marked, so that what is typed takes its place. A choice is made here.
FOCUS = r"""
((number, text) => {
  const el = (globalThis.holdfastRefs || [])[number - 1];
  if (!el || !el.isConnected) return {problem: 'gone'};
  if (el.disabled || el.readOnly) return {problem: 'closed'};
  if (el.form && el.form.target) el.form.target = '_self';
  el.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
  if (el.tagName === 'SELECT') {
    const wanted = text.trim().toLowerCase();
    const options = [...el.options];
    const option = options.find(one => one.textContent.trim().toLowerCase() === wanted)
      || options.find(one => one.value.toLowerCase() === wanted);
    if (!option) return {problem: 'choice'};
    option.selected = true;
    for (const kind of ['input', 'change']) el.dispatchEvent(new Event(kind, {bubbles: true}));
    return {chosen: true};
  }
  const none = ['checkbox', 'radio', 'submit', 'button', 'reset', 'image', 'file', 'hidden'];
  const input = el.tagName === 'INPUT' && !none.includes(el.type);
  if (!input && el.tagName !== 'TEXTAREA' && !el.isContentEditable) return {problem: 'kind'};
  el.focus();
  if (el.select) el.select(); else getSelection().selectAllChildren(el);
  return {};
})(%d, %s)
"""
