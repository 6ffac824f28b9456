// Runs before the first paint, so that a chosen theme does not flash: "light", "dark", or the system's.
'use strict';
(() => {
  let theme = null;
  try {
    theme = JSON.parse(localStorage.getItem('hadal.settings') || '{}').theme;
  } catch {
    // Storage is not allowed or contains something else, so the system's theme is used.
  }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
})();
