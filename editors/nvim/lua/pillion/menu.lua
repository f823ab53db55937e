--- Whether a completion menu is open: Neovim's own, nvim-cmp's or blink.cmp's.

local M = {}

---@return boolean
function M.open()
  if vim.fn.pumvisible() == 1 then
    return true
  end
  local cmp = package.loaded["cmp"]
  if type(cmp) == "table" and cmp.visible and cmp.visible() then
    return true
  end
  local blink = package.loaded["blink.cmp"]
  return type(blink) == "table" and blink.is_menu_visible ~= nil and blink.is_menu_visible() == true
end

return M
