require "json"
#          ^ import

# a plain remark
#         ^ comment
LIMIT = 10
#       ^ operator indent=0

class Shape < Base
#             ^ signature
  attr_reader :name
#                ^ identifier

  def initialize(first, second = 1)
#                       ^ signature indent=4 open=(
    super(first)
#0 ^ indent
#         ^ arguments
    @name = first
#           ^ operator indent=4
  end
#    ^ identifier

  def area(scale)
    total = scale * @sides
#                   ^ operator
    if total > LIMIT && scale
#              ^ operator indent=4
      return Math.max(total, 2)
#                 ^ identifier
#                     ^ arguments
#                              ^ closing indent=6
    end
    @items.each do |item, index|
#                 ^ block_start
      puts "item #{name} text"
#                    ^ identifier
#                        ^ string indent=6
    end
    table = { key: 1, "other" => 2 }
#                  ^ operator whole
#                                ^ operator
#                                   ^ closing indent=4
    text = 'single quoted'
#                  ^ string
    table[:key]
#         ^ statement
  end
end
