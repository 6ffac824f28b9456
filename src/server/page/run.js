// Runs one answer in progress: sends the request and stores what arrives in a message of the conversation.
import {ApiError, chatRequest, streamChat} from './api.js';

export class Run {
  // `changed` is called after each event; it must be cheap.
  constructor(chat, message, changed) {
    this.chat = chat;
    this.message = message;
    this.changed = changed;
    this.abort = new AbortController();
    this.begun = performance.now();
  }

  elapsed() {
    return performance.now() - this.begun;
  }

  stop() {
    this.abort.abort();
  }

  // Resolves when the answer has ended in any way; the message then tells how.
  async answer(model, settings) {
    const {message} = this;
    const before = this.chat.messages.slice(0, this.chat.messages.indexOf(message));
    message.stats = {first_ms: null, last_ms: null, first_tokens: 0, tokens: 0, prompt: 0, cached: null};
    message.unfinished = true;  // remains if the page is closed now
    try {
      const name = await model();
      if (this.abort.signal.aborted) throw new DOMException('stopped', 'AbortError');
      await streamChat(chatRequest(name, before, settings), this.abort.signal, (event) => this.take(event));
    } catch (error) {
      if (error.name === 'AbortError' || this.abort.signal.aborted) {
        message.stopped = true;
      } else if (error instanceof ApiError) {
        message.error = {kind: error.kind, title: error.message, advice: error.advice};
      } else {
        message.error = {kind: 'broken', title: 'The answer could not be read', advice: `${error.message}. Try again.`};
      }
    }
    delete message.unfinished;
    this.endThinking();
  }

  take(event) {
    const {message} = this;
    const {stats} = message;
    const choice = event.choices && event.choices[0];
    const delta = (choice && choice.delta) || {};
    if (delta.reasoning_content) message.reasoning = (message.reasoning || '') + delta.reasoning_content;
    if (delta.content) {
      this.endThinking();
      message.content += delta.content;
    }
    if (event.usage) {
      stats.tokens = event.usage.completion_tokens;
      stats.prompt = event.usage.prompt_tokens;
      const details = event.usage.prompt_tokens_details;
      if (details && typeof details.cached_tokens === 'number') stats.cached = details.cached_tokens;
    }
    if (delta.reasoning_content || delta.content) {
      const now = this.elapsed();
      if (stats.first_ms === null) {
        stats.first_ms = now;
        stats.first_tokens = stats.tokens;
      }
      stats.last_ms = now;
    }
    if (choice && choice.finish_reason) message.finish = choice.finish_reason;
    this.changed(this);
  }

  endThinking() {
    const {message} = this;
    if (message.reasoning && message.thinking_ms === undefined) {
      message.thinking_ms = this.elapsed() - (message.stats.first_ms || 0);
    }
  }
}
