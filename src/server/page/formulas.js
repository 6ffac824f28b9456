// Draws formulas with KaTeX, which is loaded when the first one appears. A formula that KaTeX cannot parse stays text.
import {loadStyle} from './dom.js';

const FRAME_MS = 12;  // time spent on formulas before the next frame
const OPTIONS = {output: 'htmlAndMathml', strict: 'ignore', trust: false, throwOnError: true, maxSize: 20, maxExpand: 500};

let library = null;
let queue = [];  // formulas that are still shown as text
let scheduled = false;

// KaTeX styles most elements through the style object, which the security policy allows. It styles some of the elements
// for screen readers through attributes, which the policy forbids.
function dropStyles(node) {
  if (node.attributes && node.attributes.style) delete node.attributes.style;
  for (const child of node.children || []) dropStyles(child);
}

function sourceOf(text) {
  const cut = text.startsWith('\\') || text.startsWith('$$') ? 2 : 1;
  return text.slice(cut, -cut);
}

function draw(node) {
  const text = node.textContent;
  try {
    const tree = self.katex.__renderToDomTree(sourceOf(text), {...OPTIONS, displayMode: node.classList.contains('display')});
    dropStyles(tree);
    const drawn = tree.toNode();
    node.source = text;
    node.replaceChildren(drawn);
    node.classList.add('drawn');
  } catch {
    node.classList.add('unread');
  }
}

function drawSome() {
  scheduled = false;
  const begun = performance.now();
  while (queue.length && performance.now() - begun < FRAME_MS) {
    const node = queue.shift();
    if (node.isConnected && node.source === undefined) draw(node);
  }
  if (queue.length) schedule();
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(drawSome);
}

function load() {
  library = library || Promise.all([import('./lib/katex.js'), loadStyle('page/lib/katex.css')]);
  return library;
}

// Draws the formulas in `nodes`. Formulas that exist in the replaced fragment `before` are reused, so that they do not
// flicker.
export function drawFormulas(nodes, before) {
  const fresh = nodes.flatMap((node) => [...node.querySelectorAll('.formula:not(.drawn, .unread)')]);
  if (fresh.length === 0) return;
  const old = new Map();
  for (const node of before.querySelectorAll('.formula.drawn')) {
    const key = node.source + node.className;
    old.set(key, [...(old.get(key) || []), node]);
  }
  for (const node of fresh) {
    const known = (old.get(`${node.textContent}${node.className} drawn`) || []).shift();
    if (known) node.replaceWith(known);
    else queue.push(node);
  }
  if (queue.length && self.katex) return drawSome();
  if (queue.length) load().then(schedule, () => {
    queue = [];  // if the library cannot be loaded, formulas stay text
  });
}
