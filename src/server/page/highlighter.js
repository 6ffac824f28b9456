// Colours code inside the worker, line by line. A line is coloured once, when it is complete, so that a growing block
// neither flickers nor costs more at its end than at its start.
const MAX_LINE = 2000;  // the rest of a block with a longer line is not coloured

let library = null;
let loading = null;

const escaped = (text) => text.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);

// Loads highlight.js, which is large, when the first code block in a named language appears.
export function loadHighlighter() {
  loading = loading || import('./lib/highlight.js').then(() => {
    library = self.hljs;
    library.configure({hideUpgradeWarningAcceptNoSupportOrSecurityUpdates: true});  // or it prints a message on the console
  }, () => null);
  return loading;
}

export const needsHighlighter = (text) => library === null && loading === null && /^[ >]*(?:```|~~~)[ ]*\w/m.test(text);

export class LineHighlighter {
  constructor(language) {
    this.language = library && language && library.getLanguage(language) ? language : null;
    this.state = undefined;  // the parser's state after the previous lines
  }

  // Returns the HTML of the next line, without its line break.
  next(line) {
    if (this.language === null || line.length > MAX_LINE) {
      this.language = null;
      return escaped(line);
    }
    const {value, top} = library.highlight(this.language, `${line}\n`, true, this.state);
    this.state = top;
    return value.replace('\n', '');
  }
}

// Returns the HTML of a whole block.
export function highlighted(text, language) {
  const lines = new LineHighlighter(language);
  return text.split('\n').map((line) => lines.next(line)).join('\n');
}
