// Handles the keys of the whole page and of the message field.
import {byId} from './dom.js';

// `actions` are search(), newChat(), submit(), editLast() and escape().
export function followKeys(actions) {
  const input = byId('input');
  input.addEventListener('keydown', (event) => {
    if (event.isComposing) return;
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault();
      actions.submit();
    } else if (event.key === 'ArrowUp' && input.value === '') {
      event.preventDefault();
      actions.editLast();
    }
  });
  document.addEventListener('keydown', (event) => {
    if (event.isComposing || byId('settings').open) return;
    const control = (event.ctrlKey || event.metaKey) && !event.altKey;
    const key = event.key.toLowerCase();
    if (control && !event.shiftKey && key === 'k') {
      event.preventDefault();
      actions.search();
    } else if (control && event.shiftKey && key === 'o') {
      event.preventDefault();
      actions.newChat();
    } else if (event.key === 'Escape') {
      actions.escape();
    }
  });
}
