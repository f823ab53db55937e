--- Whether a completion menu is open: Neovim's own, nvim-cmp's or blink.cmp's.

local M = {}

local follows_cmp = false

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
  return type(blink) == "table" and blink.is_visible ~= nil and blink.is_visible() == true
end

--- Hear of nvim-cmp's menu as soon as there is an nvim-cmp; it has events of its own.
---@param opened fun()
---@param closed fun()
function M.follow(opened, closed)
  local cmp = package.loaded["cmp"]
  if not follows_cmp and type(cmp) == "table" and cmp.event then
    follows_cmp = true
    cmp.event:on("menu_opened", opened)
    cmp.event:on("menu_closed", closed)
  end
end

return M
