// Runs before the first paint, so that a chosen theme ("light" or "dark"; otherwise the system's) does not flash. The
// rest of the page's scripts are loaded after the first paint, because they would delay it.
'use strict';
(() => {
  let theme = null;
  try {
    theme = JSON.parse(localStorage.getItem('hadal.settings') || '{}').theme;
  } catch {
    // Storage is not allowed or contains something else, so the system's theme is used.
  }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;

  const load = () => import('./app.js');  // a second import loads nothing again
  requestAnimationFrame(() => setTimeout(load));
  setTimeout(load, 1000);  // a tab in the background is not painted
})();
