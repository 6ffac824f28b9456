// Shows how much of the model's context the conversation and the unsent message fill.
import {byId} from './dom.js';
import {branch} from './tree.js';

const CHARACTERS_PER_TOKEN = 4;  // an estimate for unsent text
const NEARLY_FULL = 0.85;

const count = (n) => n.toLocaleString('en-US');

// Returns the tokens of the conversation after its last answer.
export function usedTokens(chat) {
  const answer = branch(chat).findLast((message) => message.stats && message.stats.context > 0);
  return answer ? answer.stats.context : 0;
}

// `draft` is the text in the message field, and `fileTokens` the number of tokens in its files.
export function showContext(chat, length, draft, fileTokens) {
  const node = byId('context');
  const fresh = fileTokens + Math.ceil(draft.length / CHARACTERS_PER_TOKEN);
  const used = usedTokens(chat) + fresh;
  node.hidden = !length || used === 0;
  byId('hint').hidden = !node.hidden;
  if (node.hidden) return;
  const share = Math.min(used / length, 1);
  const text = `${fresh ? 'about ' : ''}${count(used)} of ${count(length)} tokens of context`;
  node.setAttribute('aria-valuenow', String(Math.round(share * 100)));
  node.setAttribute('aria-valuetext', text);
  node.title = text;
  node.classList.toggle('nearly-full', share > NEARLY_FULL);
  byId('context-text').textContent = used > length ? 'over the context' : `${Math.round(share * 100)} %`;
  byId('context-ring').style.strokeDashoffset = String(100 - share * 100);
}
