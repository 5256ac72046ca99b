// The search takes a leading "-" for "without this word": the dashes of a flag such as --where are left out.
document.addEventListener("input", ({target}) => {
  if (target.matches("[data-md-component=search-query]")) target.value = target.value.replace(/(^|\s)-+/g, "$1")
}, true)
