// Displays one message: question, answer, thoughts, figures and errors.
import {AnswerText} from './answer_text.js';
import {fileChip} from './attachments.js';
import {copyButton, el, icon, iconButton} from './dom.js';
import {PlainText} from './plain_text.js';

const seconds = (ms) => (ms < 9950 ? `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s` : `${Math.round(ms / 1000)} s`);
const count = (n) => n.toLocaleString('en-US');
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

// Returns the tokens per second between the first event of an answer and its last.
function speed(stats) {
  const span = stats.last_ms - stats.first_ms;
  const tokens = stats.tokens - stats.first_tokens;
  return span >= 1 && tokens >= 1 ? (tokens * 1000) / span : null;
}

// Returns the line below an answer; it is empty before its first token.
export function statsText(stats) {
  if (!stats || !stats.tokens) return '';
  const parts = [plural(stats.tokens, 'token')];
  const rate = speed(stats);
  if (rate !== null) parts.push(`${rate >= 100 ? count(Math.round(rate)) : rate.toFixed(1)} tokens/s`);
  if (stats.first_ms !== null) parts.push(`first token after ${seconds(stats.first_ms)}`);
  if (typeof stats.cached === 'number') {
    parts.push(`${count(stats.cached)} of ${plural(stats.prompt, 'prompt token')} cached`);
  }
  // Lines may break only between the figures.
  return parts.map((part) => part.replaceAll(' ', '\u00a0')).join('\u00a0· ');
}

// Returns the text below an answer that did not end normally.
function endNote(message) {
  if (message.stopped) return 'Stopped.';
  if (message.finish === 'length') return 'The answer reached the token limit.';
  if (message.finish === 'abort') return 'The server ended the answer early.';
  if (message.unfinished) return 'The page was closed before the answer was complete.';
  return '';
}

// Returns an error box in place of a missing answer. `actions` are retry(), and setKey(key) for errors that a key
// resolves.
export function errorBox(error, actions) {
  const box = el('div.error', {role: 'alert'}, el('strong', {}, error.title), el('p', {}, error.advice));
  if (error.kind === 'key') {
    const field = el('input', {type: 'password', 'aria-label': 'API key', placeholder: 'API key', autocomplete: 'off'});
    box.append(el('form.error-actions', {onsubmit: (event) => {
      event.preventDefault();
      if (field.value) actions.setKey(field.value);
    }}, field, el('button.button.primary', {type: 'submit'}, 'Use this key')));
  } else {
    box.append(el('div.error-actions', {},
      el('button.button', {type: 'button', onclick: () => actions.retry()}, icon('again'), 'Try again')));
  }
  return box;
}

// Returns the buttons that step through the versions of a message, or null if there is only one.
function versionSteps(message, actions) {
  const all = actions.versions();
  if (all.length < 2) return null;
  const at = all.indexOf(message);
  const step = (by, name, label) => {
    const button = iconButton(name, label, () => actions.show(all[at + by], by));
    button.disabled = all[at + by] === undefined;
    button.dataset.step = String(by);
    return button;
  };
  return el('span.versions', {role: 'group', 'aria-label': 'Versions'}, step(-1, 'left', 'Previous version'),
    el('span.version', {}, `${at + 1}\u202f/\u202f${all.length}`), step(1, 'right', 'Next version'));
}

export class UserView {
  // `actions` are edit(text), which asks `text` instead of the question, canEdit(), versions() and show(version).
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = el('article.message.user', {'aria-label': 'You'});
    this.show();
  }

  show() {
    const {files = [], content} = this.message;
    this.editButton = iconButton('edit', 'Edit message', () => this.edit());
    this.node.replaceChildren(
      ...(files.length ? [el('div.files', {}, ...files.map((file) => fileChip(file)))] : []),
      ...(content ? [el('div.bubble', {}, content)] : []),
      el('div.actions', {}, versionSteps(this.message, this.actions), copyButton('Copy message', () => content),
        this.editButton));
  }

  edit() {
    if (!this.actions.canEdit()) return;
    const field = el('textarea', {'aria-label': 'Edit message', rows: '3'});
    field.value = this.message.content;
    const leave = () => {
      this.show();
      this.editButton.focus();
    };
    const send = () => {
      if (field.value.trim() || this.message.files) this.actions.edit(field.value);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        leave();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.node.replaceChildren(el('form.edit', {onsubmit: (event) => {
      event.preventDefault();
      send();
    }}, field, el('div.edit-foot', {}, el('small', {}, 'What was there before stays as another version.'),
      el('button.button', {type: 'button', onclick: leave}, 'Cancel'),
      el('button.button.primary', {type: 'submit'}, 'Send'))));
    field.style.height = `${Math.min(field.scrollHeight + 4, 320)}px`;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  forget() {}
}

export class AssistantView {
  // `actions` are retry(), resume(), setKey(key), versions(), show(version), and changed(), which is called when the
  // screen has changed.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thoughtTitle = el('span.thought-title');
    const thoughtText = el('div.thought-text');
    this.thoughtText = new PlainText(thoughtText);
    this.thoughts = el('details.thoughts', {hidden: true},
      el('summary', {}, icon('chevron'), this.thoughtTitle), thoughtText);
    this.body = el('div.answer');
    this.calls = el('div.calls');
    this.text = new AnswerText(this.body, () => {
      this.showBusy();
      actions.changed();
    });
    this.waiting = el('div.waiting', {hidden: true}, el('span.dot'), el('span.dot'), el('span.dot'),
      el('span.sr-only', {}, 'Waiting for the answer'));
    this.foot = el('div.foot');
    this.stats = el('span.stats');
    this.statsAt = 0;
    this.node = el('article.message.assistant', {'aria-label': 'Answer'},
      this.thoughts, this.body, this.calls, this.waiting, this.foot);
  }

  // Shows the current state of the message. While it grows, `now` is the time in ms since the request; once it is
  // complete, `now` is null. `last` is true if no message follows.
  update(now, last) {
    const {message} = this;
    if (message.reasoning) this.thoughtText.update(message.reasoning);
    this.streaming = now !== null;
    this.text.update(message.content, this.streaming);
    this.showCalls();
    this.showBusy();
    const thinking = this.streaming && message.content === '' && Boolean(message.reasoning);
    this.thoughts.hidden = !message.reasoning;
    if (message.reasoning) this.setThoughtTitle(thinking, now);
    this.thoughts.classList.toggle('live', thinking);
    this.waiting.hidden = !this.streaming || thinking || message.content !== '';
    if (this.streaming) {
      if (this.stats.parentNode !== this.foot) this.foot.replaceChildren(this.stats);
      if (now - this.statsAt > 250) {  // figures that change faster cannot be read
        this.statsAt = now;
        this.stats.textContent = statsText(message.stats);
      }
    } else {
      this.finish(last);
    }
  }

  // Shows the model's function calls, whose arguments grow like an answer.
  showCalls() {
    const {calls = []} = this.message;
    for (const [i, call] of calls.entries()) {
      if (!call) continue;
      while (this.calls.childElementCount <= i) {
        this.calls.append(el('div.code', {}, el('div.code-head'), el('pre', {tabIndex: 0}, el('code'))));
      }
      const frame = this.calls.children[i];
      frame.firstChild.textContent = `calls ${call.name}`;
      frame.querySelector('code').textContent = call.arguments;
    }
  }

  showBusy() {
    const busy = String(this.streaming || this.text.busy());
    if (this.node.getAttribute('aria-busy') !== busy) this.node.setAttribute('aria-busy', busy);
  }

  setThoughtTitle(thinking, now) {
    const {message} = this;
    const stats = message.stats || {};
    const ms = thinking ? now - (stats.first_ms || now) : message.thinking_ms;
    const tokens = stats.thinking || (thinking ? stats.tokens : 0);
    const length = tokens ? plural(tokens, 'token') : plural(message.reasoning.length, 'character');
    const time = typeof ms === 'number' ? (thinking ? ` ${Math.floor(ms / 1000)} s` : ` for ${seconds(ms)}`) : '';
    const title = `${thinking ? 'Thinking' : 'Thought'}${time} · ${length}`;
    if (this.thoughtTitle.textContent !== title) this.thoughtTitle.textContent = title;
  }

  finish(last) {
    const {message} = this;
    const nodes = [];
    const note = endNote(message);
    const canResume = last && message.content !== '' && !message.calls &&
      (note !== '' || (message.error && message.error.kind !== 'request'));
    if (note || canResume) {
      nodes.push(el('p.note', {}, note, canResume ? el('button.button', {type: 'button', onclick: () => this.actions.resume()},
        icon('forward'), 'Continue') : null));
    }
    if (message.error) nodes.push(errorBox(message.error, this.actions));
    const row = el('div.actions', {}, versionSteps(message, this.actions));
    if (message.content) row.append(copyButton('Copy answer', () => message.content));
    if (!message.error) row.append(iconButton('again', 'Answer again', () => this.actions.retry()));
    this.stats.textContent = statsText(message.stats);
    row.append(this.stats);
    nodes.push(row);
    this.foot.replaceChildren(...nodes);
  }

  forget() {
    this.text.forget();
  }
}
