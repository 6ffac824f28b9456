// Builds DOM without markup in strings, so that text passed to these functions always stays text.

// el('p.note', {title: 'x', onclick: f}, 'text', node, …) makes a tag with classes, properties or attributes,
// and children. null and undefined attributes and children are left out.
export function el(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== 'string') node[name] = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

// Works for any number of nodes. A call cannot have as many arguments as a long text has nodes.
export function appendAll(parent, nodes) {
  for (const node of nodes) parent.append(node);
  return parent;
}

// These are outlines on a 24×24 grid.
const ICONS = {
  plus: 'M12 5v14M5 12h14',
  close: 'M6 6l12 12M18 6L6 18',
  menu: 'M4 7h16M4 12h16M4 17h16',
  sliders: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  down: 'M12 5v14M6 13l6 6 6-6',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  again: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
  edit: 'M5 19l1-4L16 5l3 3L9 18zM14 7l3 3',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  upload: 'M12 15V4M7 9l5-5 5 5M5 20h14',
  search: 'M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15.5 15.5L20 20',
  clip: 'M8 12.5l5.5-5.5a2.8 2.8 0 0 1 4 4L10 18.5a4.6 4.6 0 0 1-6.5-6.5l7-7',
  file: 'M7 3h7l4 4v14H7zM14 3v4h4',
  left: 'M15 6l-6 6 6 6',
  right: 'M9 6l6 6-6 6',
  forward: 'M5 6l6 6-6 6M13 6l6 6-6 6',
  theme: 'M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z',
  thought: 'M9 18h6M10 21h4M12 3a6 6 0 0 0-3.5 11c.7.6 1 1.2 1 2h5c0-.8.3-1.4 1-2A6 6 0 0 0 12 3z',
  chevron: 'M9 6l6 6-6 6',
};

export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.classList.add('icon');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

export function iconButton(name, label, onclick) {
  return el('button.icon-button', {type: 'button', 'aria-label': label, title: label, onclick}, icon(name));
}

// Inserts the icons into the document's buttons that name one.
export function fillIcons(root) {
  for (const node of root.querySelectorAll('[data-icon]')) node.prepend(icon(node.dataset.icon));
}

export const byId = (id) => document.getElementById(id);

// Copies the text, and returns true if it is on the clipboard. The clipboard's own interface exists only on
// localhost and over TLS; elsewhere a selection in a temporary text field is used.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const field = el('textarea.sr-only', {readonly: '', 'aria-hidden': 'true'});
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    if (before) before.focus();
    return done;
  }
}

export function copyButton(label, text) {
  const button = iconButton('copy', label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? 'check' : 'close'));
    button.title = done ? 'Copied' : 'The browser does not allow copying';
    setTimeout(() => {
      button.replaceChildren(icon('copy'));
      button.title = label;
    }, 1500);
  });
  return button;
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  const link = el('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Resolves when the style sheet has been loaded, or cannot be loaded.
export function loadStyle(href) {
  return new Promise((resolve) => {
    document.head.append(el('link', {rel: 'stylesheet', href, onload: resolve, onerror: resolve}));
  });
}

let toastTimer = 0;

// Shows a line which disappears by itself and which screen readers announce. `action` is a button's {label, run}.
export function toast(text, action = null) {
  const node = byId('toast');
  const hide = () => (node.hidden = true);
  node.replaceChildren(el('span', {}, text));
  if (action) {
    node.append(el('button.button', {type: 'button', onclick: () => {
      hide();
      action.run();
    }}, action.label));
  }
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, 7000);
}
